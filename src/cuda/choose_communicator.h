// Which communicator serves the tensors in the GPUs of several ranks.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "cuda/nccl_communicator.h"

namespace convoy {

class CudaDevice;

// `kind`: nccl; ipc (CUDA IPC, on one host); host (copies in host memory); or auto: on one host IPC where every rank
// can map the others' memory, else and across hosts NCCL where every rank has a GPU of its own, else host. IPC comes
// first on one host because it takes no memory of the GPU, reads each byte once, serves ranks that share a GPU, and
// sums by the tree without a second pass. All ranks must call. `host` is taken where a communicator is returned, and
// left where an error is thrown: a usage error, on every rank, if the ranks want different kinds or theirs cannot be
// had.
std::unique_ptr<Communicator> choose_gpu_communicator(CudaDevice& device, std::unique_ptr<Communicator>& host,
                                                      const std::string& kind, const NcclOptions& options);

}  // namespace convoy
