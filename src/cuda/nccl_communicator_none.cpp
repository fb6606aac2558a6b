// A build without NCCL's header.
#include "cuda/nccl_communicator.h"

namespace convoy {

NcclFound find_nccl() {
  return {nullptr, "this build was made without NCCL's header (nccl.h)"};
}

NcclOutcome make_nccl_communicator(const NcclFound& found, std::unique_ptr<GpuLane> /*lane*/,
                                   std::unique_ptr<Communicator>& /*host*/, const NcclOptions& /*options*/) {
  return {nullptr, found.reason};
}

}  // namespace convoy
