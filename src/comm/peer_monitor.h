// Watches over the ranks of a group that spans hosts, through the rendezvous.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace gloo::transport {
class UnboundBuffer;
}

namespace convoy {

// Posts this rank's state every moment, and reads the others'. When the group is broken it remembers why and ends
// whatever waits in Gloo. Broken is a group
// - that a rank has aborted,
// - of which a rank is not heard of within the timeout (it died, or its host is cut off), or computes for longer than
// that
//   without a sign of progress,
// - in which all ranks wait for one another and nothing arrives.
// Once Gloo has lost a connection, a few missing posts are enough: a killed rank is known after some seconds.
class PeerMonitor {
 public:
  PeerMonitor(const CommunicatorOptions& options, std::string prefix);
  ~PeerMonitor() { stop(); }
  PeerMonitor(const PeerMonitor&) = delete;
  PeerMonitor& operator=(const PeerMonitor&) = delete;

  void start();
  void stop();
  void progress() { events_.fetch_add(1, std::memory_order_relaxed); }
  // This rank waits for others in `operation` (a literal), until done(). `mark` is the same on ranks that agree.
  void waits_in(const char* operation, std::uint64_t mark);
  void done();
  // The buffers that this rank waits for; null: none.
  void watch(gloo::transport::UnboundBuffer* out, gloo::transport::UnboundBuffer* in);
  // Tells the others why this rank fails.
  void abort(const std::string& reason);
  // This rank is about to leave: ends what its own other thread waits for.
  void end();
  // Something went wrong that a lost rank would explain: from now on missing posts count sooner.
  void suspect();
  // Throws if the group is broken.
  void check() const;
  // Gloo has lost a connection, as `what` says: finds out whose, and throws.
  [[noreturn]] void explain(const std::string& what);

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    std::uint64_t beats = 0, events = 0, mark = 0;
    bool waits = false, left = false;
    std::string operation;
    std::string cause;  // why it left; empty: for no fault of the group
    Clock::time_point heard = Clock::now(), moved = Clock::now();
  };

  void run();
  void post();
  void read(int rank);
  std::optional<Error> look_around();
  std::optional<Error> all_wait() const;
  void break_group(const Error& error);
  double patience() const;
  std::string key(int rank) const { return prefix_ + "state/" + std::to_string(rank); }

  const CommunicatorOptions options_;
  const std::string prefix_;
  const std::chrono::duration<double> pause_;
  RendezvousClient client_;
  std::vector<Peer> peers_;  // this rank among them
  std::uint64_t beats_ = 0;
  std::atomic<std::uint64_t> events_ = 1, mark_ = 0;
  std::atomic<const char*> operation_ = nullptr;  // null: this rank does not wait
  std::atomic<bool> connection_lost_ = false;
  mutable std::mutex lock_;
  std::condition_variable changed_;
  std::optional<Error> error_;
  gloo::transport::UnboundBuffer *out_ = nullptr, *in_ = nullptr;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace convoy
