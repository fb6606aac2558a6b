// NCCL's communicator of one rank, with its waits: it ends, or throws.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/communicator.h"
#include "cuda/gpu_lane.h"
#include "cuda/nccl_api.h"

namespace convoy {

// One thread at a time, except for end().
class NcclGroup {
 public:
  // The api, the lane and the host's group outlive it.
  NcclGroup(std::shared_ptr<const NcclApi> api, GpuLane& lane, Communicator& host, double timeout_seconds)
      : api_(std::move(api)), lane_(lane), host_(host), timeout_(timeout_seconds) {}
  // Leaves together with the others where all is well; aborts otherwise.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Joins the others: every rank calls with the first rank's id.
  void join(const ncclUniqueId& id);
  bool joined() const { return comm_ != nullptr; }
  bool aborted() const { return aborted_; }

  const NcclApi& api() const { return *api_; }
  std::shared_ptr<const NcclApi> shared_api() const { return api_; }
  ncclComm_t comm() const { return comm_; }

  // Calls of NCCL that run as one operation: `calls` passes each result to what it is given.
  template <typename Calls>
  void together(const char* what, const Calls& calls) {
    must(api_->GroupStart(), what);
    ncclResult_t first = ncclSuccess;
    calls([&](ncclResult_t result) {
      if (first == ncclSuccess && result != ncclInProgress) first = result;
    });
    const ncclResult_t ended = api_->GroupEnd();
    must(first, what);
    if (ended == ncclInProgress) {
      settle(what, timeout_);  // until then nothing is in the stream
    } else {
      must(ended, what);
    }
  }
  // Waits for what was put into the lane's stream, in which `bytes` were to come or go.
  void finish(const char* what, std::uint64_t bytes);
  // Waits until the GPU has come to `mark`, which may take this rank's own computing.
  void reach(std::uint64_t mark);
  // Ends what waits, in whatever thread: this rank is leaving, or has failed with an error of its own.
  void end(const std::string& reason);
  // Aborts NCCL's communicator; nothing can be run after that.
  void abort();

 private:
  using Clock = std::chrono::steady_clock;
  // Until ready() holds. Throws after `seconds`, and where NCCL or the host's group has failed.
  void await(const char* what, double seconds, const std::function<bool()>& ready);
  void settle(const char* what, double seconds);
  void must(ncclResult_t result, const char* what) {
    if (result != ncclSuccess && result != ncclInProgress) fail(result, what);
  }
  [[noreturn]] void fail(ncclResult_t result, const char* what);
  // After the abort: throws the host group's error if it comes to know of a lost rank, else `error`.
  [[noreturn]] void blame(const Error& error, bool others_may_be_lost);

  const std::shared_ptr<const NcclApi> api_;
  GpuLane& lane_;
  Communicator& host_;
  const double timeout_;
  ncclComm_t comm_ = nullptr;
  bool aborted_ = false;
  std::atomic<bool> ending_ = false, ended_ = false;
  std::string reason_;  // written before ended_
};

}  // namespace convoy
