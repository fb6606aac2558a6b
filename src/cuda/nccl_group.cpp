#include "cuda/nccl_group.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace convoy {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::chrono::milliseconds kLookAround{20};
// No line between hosts that trains anything is slower; bytes per second.
constexpr double kSlowest = 50e6;
// The GPU's own work may be a whole step on very long sequences.
constexpr double kLongestWork = 600;

// Runs `call` in a thread of its own and gives up on it after `seconds`: a library that hangs must not take the process
// with it. Returns whether it ended.
bool runs_within(double seconds, const std::function<void()>& call) {
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  std::thread([call, ended] {
    call();
    *ended = true;
  }).detach();
  const auto deadline = std::chrono::steady_clock::now() + Seconds(seconds);
  while (!*ended) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

bool others_explain(ncclResult_t result) {
  return result == ncclRemoteError || result == ncclSystemError;
}

}  // namespace

NcclGroup::~NcclGroup() {
  if (comm_ == nullptr) return;
  if (!ended_) {
    try {
      must(api_->CommFinalize(comm_), "leaving");
      settle("leaving", std::min(timeout_, 5.0));
    } catch (const std::exception& failure) {  // the others have gone before: nothing of this rank's is under way
      log_debug("NCCL does not end together: {}", failure.what());
      abort();
      return;
    }
    const ncclComm_t comm = comm_;
    if (!runs_within(5, [api = api_, comm] { api->CommDestroy(comm); }))
      log_warning("NCCL does not give up its communicator; it stays until the process ends");
    return;
  }
  abort();
}

void NcclGroup::join(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t started = api_->CommInitRankConfig(&comm_, host_.size(), id, host_.rank(), &config);
  must(started, "joining");
  settle("joining", timeout_);
}

void NcclGroup::end(const std::string& reason) {
  if (ending_.exchange(true)) return;
  reason_ = reason;
  ended_ = true;
}

void NcclGroup::abort() {
  aborted_ = true;
  if (comm_ == nullptr) return;
  const ncclComm_t comm = comm_;
  comm_ = nullptr;
  if (!runs_within(10, [api = api_, comm] { api->CommAbort(comm); }))
    log_warning("NCCL's communicator cannot be aborted; it stays until the process ends");
}

void NcclGroup::settle(const char* what, double seconds) {
  ncclResult_t state = ncclInProgress;
  await(what, seconds, [&] {
    must(api_->CommGetAsyncError(comm_, &state), what);
    must(state, what);
    return state != ncclInProgress;
  });
}

void NcclGroup::finish(const char* what, std::uint64_t bytes) {
  lane_.record();
  await(what, timeout_ + static_cast<double>(bytes) / kSlowest, [this] { return lane_.done(); });
}

void NcclGroup::reach(std::uint64_t mark) {
  await("the GPU's own work", std::max(kLongestWork, 2 * timeout_), [this, mark] { return lane_.reached(mark); });
}

void NcclGroup::await(const char* what, double seconds, const std::function<bool()>& ready) {
  const auto begin = Clock::now();
  auto next_look = begin + kLookAround;
  for (int look = 1;; ++look) {
    try {
      if (ready()) return;
    } catch (const Error&) {  // of the GPU, or of NCCL: it has come to stay
      abort();
      throw;
    }
    if (ended_) {
      abort();
      throw Error(Status::kPeerLost, reason_);
    }
    if (const auto now = Clock::now(); now >= next_look) {
      next_look = now + kLookAround;
      host_.progress();
      try {
        host_.look_around(false);
      } catch (const Error&) {
        abort();
        throw;
      }
      if (ncclResult_t state = ncclSuccess; comm_ != nullptr) {
        must(api_->CommGetAsyncError(comm_, &state), what);
        must(state, what);
      }
      if (const double waited = Seconds(now - begin).count(); waited > seconds) {
        abort();
        blame(Error(Status::kPeerLost,
                    fmt::format("NCCL: {} has not ended on rank {} after {:.1f} s", what, host_.rank(), waited))
                  .mend("see that the GPUs reach one another (NCCL_DEBUG=INFO says how they try to); --timeout waits "
                        "longer, gpu_communicator: host does without NCCL"),
              true);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(look < 64 ? 2 : 20));
  }
}

void NcclGroup::fail(ncclResult_t result, const char* what) {
  const char* last = api_->GetLastError(comm_);
  std::string text = fmt::format("NCCL: {} failed on rank {}: {}", what, host_.rank(), api_->GetErrorString(result));
  if (last != nullptr && *last != '\0') text += fmt::format(" ({})", last);
  abort();
  const bool remote = others_explain(result);
  blame(Error(remote ? Status::kPeerLost : Status::kInternal, text)
            .mend("NCCL_DEBUG=INFO says more; gpu_communicator: host does without NCCL"),
        remote);
}

void NcclGroup::blame(const Error& error, bool others_may_be_lost) {
  // A rank that dies keeps its place in the host's group for a moment, while the kernel takes its memory down.
  const auto deadline = Clock::now() + Seconds(others_may_be_lost ? std::min(8.0, timeout_) : 0);
  while (Clock::now() < deadline) {
    host_.progress();
    host_.look_around(true);
    std::this_thread::sleep_for(kLookAround);
  }
  throw error;
}

}  // namespace convoy
