// Collective operations of ranks of one host on tensors in GPU memory: each rank maps the others' memory (CUDA IPC) and
// reads what it needs from there, over NVLink or PCIe; ranks that share a GPU, on it. Sums follow the same tree as the
// host's (comm/tree_sum.h), so the bits are the same.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace convoy {

class CudaDevice;

// `host` joins the same ranks in shared memory; it keeps them in step and carries what lies in host memory. All ranks
// must call. Returns `host` itself where a rank cannot map another's memory, and for more than 16 ranks.
std::unique_ptr<Communicator> make_ipc_communicator(CudaDevice& device, std::unique_ptr<Communicator> host);

}  // namespace convoy
