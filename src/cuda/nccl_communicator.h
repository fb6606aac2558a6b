// Collective operations between GPUs through NCCL: one GPU to a rank, on one host or several.
//
// Sums. deterministic: blocks are exchanged by NCCL's sends and receives and added by the fixed tree of comm/tree_sum.h
// on the GPU that needs the sum: the same bits as every other communicator gives (16-bit numbers are added in f32 and
// rounded once). Otherwise NCCL adds, in an order of its own choice that may depend on the number of ranks and on how
// they are linked; it hands partial sums on in the tensors' type, so 16-bit sums may be rounded more than once.
//
// No wait is without end. Before an operation the ranks meet in the host's group, which names a rank that does not
// come, and compare what they are about to do. After that the operation has the run's timeout to end, and more for its
// bytes; meanwhile NCCL's asynchronous errors and the host's group are looked at. Whatever fails aborts NCCL's
// communicator first; then the error is the host group's where it knows of a lost rank.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "cuda/gpu_lane.h"

namespace convoy {

struct NcclApi;

struct NcclOptions {
  double timeout_seconds = 30;
  bool deterministic = true;
  // Bytes of the GPU's memory for what comes from the others before it is summed; one operation takes as many rounds as
  // that asks for.
  std::size_t scratch = std::size_t{64} << 20;
};

// What NCCL came to among the ranks: a communicator, or why there is none; the same on every rank.
struct NcclOutcome {
  std::unique_ptr<Communicator> communicator;
  std::string reason;
};

// Why this build or this machine has no NCCL, or its functions.
struct NcclFound {
  std::shared_ptr<const NcclApi> api;
  std::string reason;
};
NcclFound find_nccl();

// `host` joins the same ranks; it keeps them in step and carries what lies in host memory. It is taken where a
// communicator comes out, and left as it is otherwise. All ranks must call, also those that found no NCCL: then there
// is none for all. Throws only where the ranks themselves are lost.
NcclOutcome make_nccl_communicator(const NcclFound& found, std::unique_ptr<GpuLane> lane,
                                   std::unique_ptr<Communicator>& host, const NcclOptions& options);

}  // namespace convoy
