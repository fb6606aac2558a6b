// The memory that the ranks of one host share, and how they wait for one another in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/error.h"

namespace convoy {

// What a rank is about to do, to be compared with the others'.
struct OperationMark {
  std::uint32_t kind = 0;
  std::uint32_t dtype = 0;
  std::uint64_t shape = 0;  // a hash of sizes and cuts
  friend bool operator==(const OperationMark&, const OperationMark&) = default;
};

struct SegmentOptions {
  std::string name;  // of the POSIX shared memory object, "/convoy-…"
  int rank = 0, size = 1;
  std::size_t scratch = 0;  // bytes per rank
  double timeout_seconds = 30;
};

// Ranks count the times that they arrive. A rank that is dead is known by its lock on the segment's file, which the
// kernel drops whatever way a process ends; a rank that hangs, by the time of its last sign of progress.
class ShmSegment {
 public:
  // Makes (rank 0) or joins the segment, and returns when all ranks are there; then its name is free again. Throws
  // errors of status peer-lost where ranks do not come in time.
  explicit ShmSegment(const SegmentOptions& options);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  // Scratch of a rank.
  std::byte* scratch(int of) const;

  // Tells that this rank has come to its next meeting, and waits for all others to come to it.
  void meet() {
    arrive();
    wait_all();
  }
  void arrive();
  void wait_all();
  // Announces the operation that starts with the next meeting; check_marks throws after it if a rank announced another.
  void announce(const OperationMark& mark);
  void check_marks(const char* operation) const;
  // Waits until `ready` holds, for which `peer` must do something. `what`: for the error.
  void wait_until(int peer, const char* what, const std::function<bool()>& ready);
  // Wakes the ranks that wait.
  void wake();

  void progress();
  // Throws if the job was aborted or a rank died; with `left_too`, also if one has left.
  void look_around(bool left_too);
  // Tells the others that this rank is gone, and ends what its own other thread waits for.
  void leave();
  void abort(const std::string& reason);
  double seconds_waited() const { return seconds_waited_; }

 private:
  struct Control;
  struct Header;
  void create();
  void publish(const std::string& text);
  void join();
  void wait_for_all_to_join();
  bool all_arrived() const;
  void sleep_until(const std::function<bool()>& ready, const char* what, int only_peer);
  template <typename Ready>
  bool spin(const Ready& ready) const;
  std::optional<Error> lost_peer(const char* what, int only_peer) const;
  bool holds_lock(int peer) const;
  Control& control(int of) const;
  std::size_t scratch_offset(int of) const;
  void map(std::size_t bytes);

  SegmentOptions options_;
  int fd_ = -1;
  bool made_ = false;  // the name is this object's to remove
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  Header* header_ = nullptr;
  std::uint64_t meetings_ = 0;
  int spins_ = 0;
  std::atomic<bool> leaving_ = false;
  double seconds_waited_ = 0;
};

}  // namespace convoy
