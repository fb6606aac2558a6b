// What the backends share: started operations in a thread of their own, blocking ones after them, counting and
// observing.
#pragma once

#include <chrono>

#include "comm/async_queue.h"
#include "comm/communicator.h"

namespace convoy {

// A backend gives the run_… functions, which run one at a time, and calls queue_.stop() in its destructor before what
// they use goes.
class QueuedCommunicator : public Communicator {
 public:
  Ticket start_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) final {
    return queue_.start(
        [this, dtype, pieces] { observed("reduce-scatter", [&] { run_reduce_scatter(dtype, pieces); }); });
  }
  Ticket start_all_gather(DType dtype, std::span<const GatherPiece> pieces) final {
    return queue_.start([this, dtype, pieces] { observed("all-gather", [&] { run_all_gather(dtype, pieces); }); });
  }
  Ticket start_all_reduce(DType dtype, std::span<const ReducePiece> pieces) final {
    return queue_.start([this, dtype, pieces] { observed("all-reduce", [&] { run_all_reduce(dtype, pieces); }); });
  }
  void wait(Ticket ticket) final { traffic_.seconds_waiting += queue_.wait(ticket); }
  void reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) final {
    direct([&] { observed("reduce-scatter", [&] { run_reduce_scatter(dtype, pieces); }); });
  }
  void all_gather(DType dtype, std::span<const GatherPiece> pieces) final {
    direct([&] { observed("all-gather", [&] { run_all_gather(dtype, pieces); }); });
  }
  void all_reduce(DType dtype, std::span<const ReducePiece> pieces) final {
    direct([&] { observed("all-reduce", [&] { run_all_reduce(dtype, pieces); }); });
  }
  const Traffic& traffic() const final { return traffic_; }
  void set_observer(const OperationObserver& observer) final {
    queue_.wait_all();
    observer_ = observer;
  }

 protected:
  virtual void run_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) = 0;
  virtual void run_all_gather(DType dtype, std::span<const GatherPiece> pieces) = 0;
  virtual void run_all_reduce(DType dtype, std::span<const ReducePiece> pieces) = 0;
  // Seconds that operations in the calling thread have waited for other ranks so far, where the backend knows.
  virtual double seconds_waited() const { return 0; }

  // In the calling thread, after what was started.
  template <typename Operation>
  void direct(const Operation& operation) {
    traffic_.seconds_waiting += queue_.wait_all();
    const double before = seconds_waited();
    operation();
    traffic_.seconds_waiting += seconds_waited() - before;
  }

  AsyncQueue queue_;
  Traffic traffic_;

 private:
  template <typename Operation>
  void observed(const char* name, const Operation& operation) {
    if (!observer_) return operation();
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t before = traffic_.total();
    operation();
    observer_(name, begin, std::chrono::steady_clock::now(), traffic_.total() - before);
  }
  OperationObserver observer_;
};

}  // namespace convoy
