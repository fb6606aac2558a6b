#include "cuda/choose_communicator.h"

#include <fmt/format.h>

#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_lane.h"
#include "cuda/ipc_communicator.h"

namespace convoy {
namespace {

constexpr const char* kKey = "gpu_communicator";

// The ranks' settings are compared later, through the communicator that they choose: this one has to be now.
void check_same_kind(Communicator& host, const std::string& kind, bool deterministic) {
  const auto ranks = static_cast<std::size_t>(host.size());
  const auto own = static_cast<std::size_t>(host.rank());
  std::vector<char> first(2 * ranks);
  first[2 * own] = kind.at(0);  // the kinds differ in it
  first[2 * own + 1] = deterministic ? 1 : 0;
  const GatherPiece piece{reinterpret_cast<const std::byte*>(&first[2 * own]),
                          reinterpret_cast<std::byte*>(first.data()),
                          {std::int64_t{2} * host.size(), 2}};
  host.all_gather(DType::kU8, std::span(&piece, 1));
  for (std::size_t r = 1; r < ranks; ++r) {
    const bool kinds = first[2 * r] != first[0];
    if (!kinds && first[2 * r + 1] == first[1]) continue;
    throw usage_error(
        fmt::format("rank {} was started with another `{}` than rank 0", r, kinds ? kKey : "deterministic"))
        .mend("give all ranks the same settings");
  }
}

}  // namespace

std::unique_ptr<Communicator> choose_gpu_communicator(CudaDevice& device, std::unique_ptr<Communicator>& host,
                                                      const std::string& kind, const NcclOptions& options) {
  check_same_kind(*host, kind, options.deterministic);
  if (kind == "host") return std::move(host);
  const bool one_host = host->name() == "shm";
  std::string no_ipc = "CUDA IPC joins GPUs of one host only, and the ranks are on several";
  if (one_host && kind != "nccl") {
    host = make_ipc_communicator(device, std::move(host));
    if (host->reaches_device_memory()) return std::move(host);
    no_ipc = "the ranks cannot map one another's GPU memory (CUDA IPC)";
  }
  if (kind == "ipc") throw usage_error(no_ipc).at("gpu_communicator: ipc").mend("use gpu_communicator: auto");
  NcclOutcome nccl = make_nccl_communicator(find_nccl(), make_cuda_lane(device), host, options);
  if (nccl.communicator) return std::move(nccl.communicator);
  if (kind == "nccl") {
    throw usage_error(fmt::format("NCCL cannot be used: {}", nccl.reason))
        .at("gpu_communicator: nccl")
        .mend("use gpu_communicator: auto, which takes what works");
  }
  if (host->rank() == 0)
    log_warning("ranks exchange through copies in host memory, which is slow: {}; NCCL: {}", no_ipc, nccl.reason);
  return std::move(host);
}

}  // namespace convoy
