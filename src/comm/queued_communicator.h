// What the backends share: started operations in a thread of their own, blocking ones after them, counting and
// observing.
#pragma once

#include <chrono>
#include <vector>

#include "comm/async_queue.h"
#include "comm/communicator.h"

namespace convoy {

// A backend gives the run_… functions, which run one at a time, and calls queue_.stop() in its destructor before what
// they use goes.
class QueuedCommunicator : public Communicator {
 public:
  Ticket start_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) final {
    return queue_.start([this, dtype, pieces, now = mark()] {
      reach(now);
      observed("reduce-scatter", [&] { run_reduce_scatter(dtype, pieces); });
    });
  }
  Ticket start_all_gather(DType dtype, std::span<const GatherPiece> pieces) final {
    return queue_.start([this, dtype, pieces, now = mark()] {
      reach(now);
      observed("all-gather", [&] { run_all_gather(dtype, pieces); });
    });
  }
  Ticket start_all_reduce(DType dtype, std::span<const ReducePiece> pieces) final {
    return queue_.start([this, dtype, pieces, now = mark()] {
      reach(now);
      observed("all-reduce", [&] { run_all_reduce(dtype, pieces); });
    });
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
  // For devices that work beside the host: mark() is called when an operation is started, reach() where it runs, and
  // returns once what the device had been told before is done.
  virtual std::uint64_t mark() { return 0; }
  virtual void reach(std::uint64_t /*mark*/) {}
  // Seconds that operations in the calling thread have waited for other ranks so far, where the backend knows.
  virtual double seconds_waited() const { return 0; }

  // This rank's place among those that give the same colour; every rank must call.
  struct Place {
    int rank = 0, size = 0;
  };
  Place place_among(int color) {
    std::vector<double> colors(static_cast<std::size_t>(size()));
    colors[static_cast<std::size_t>(rank())] = color;
    const GatherPiece piece{reinterpret_cast<const std::byte*>(&colors[static_cast<std::size_t>(rank())]),
                            reinterpret_cast<std::byte*>(colors.data()),
                            {size(), 1}};
    all_gather(DType::kF64, std::span(&piece, 1));
    Place place;
    for (int r = 0; r < size(); ++r) {
      if (static_cast<int>(colors[static_cast<std::size_t>(r)]) != color) continue;
      if (r < rank()) ++place.rank;
      ++place.size;
    }
    return place;
  }

  // In the calling thread, after what was started.
  template <typename Operation>
  void direct(const Operation& operation) {
    traffic_.seconds_waiting += queue_.wait_all();
    const double before = seconds_waited();
    reach(mark());
    operation();
    traffic_.seconds_waiting += seconds_waited() - before;
  }

  // An operation that another group does for this one: what it sends counts here.
  template <typename Operation>
  void through(const Communicator& other, const Operation& operation) {
    const Traffic before = other.traffic();
    operation();
    const Traffic& after = other.traffic();
    traffic_.reduce_scatter += after.reduce_scatter - before.reduce_scatter;
    traffic_.all_gather += after.all_gather - before.all_gather;
    traffic_.all_reduce += after.all_reduce - before.all_reduce;
    traffic_.broadcast += after.broadcast - before.broadcast;
    traffic_.all_to_all += after.all_to_all - before.all_to_all;
    traffic_.point_to_point += after.point_to_point - before.point_to_point;
    traffic_.operations += after.operations - before.operations;
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
