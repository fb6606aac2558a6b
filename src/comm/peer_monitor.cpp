#include "comm/peer_monitor.h"

#include <fmt/format.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <sstream>

namespace convoy {
namespace {

constexpr std::string_view kLeft = "left ";  // then why

Error peer_lost(const std::string& what) {
  return {Status::kPeerLost, what};
}

double seconds_since(std::chrono::steady_clock::time_point when) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - when).count();
}

}  // namespace

PeerMonitor::PeerMonitor(const CommunicatorOptions& options, std::string prefix)
    : options_(options),
      prefix_(std::move(prefix)),
      pause_(std::clamp(options.timeout_seconds / 10, 0.1, 1.0)),
      client_(options.master_address, options.master_port, options.token),
      peers_(static_cast<std::size_t>(options.size)) {}

void PeerMonitor::start() {
  thread_ = std::thread([this] { run(); });
}

void PeerMonitor::stop() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void PeerMonitor::waits_in(const char* operation, std::uint64_t mark) {
  mark_ = mark;
  operation_ = operation;
  progress();
}

void PeerMonitor::done() {
  operation_ = nullptr;
  progress();
}

void PeerMonitor::watch(gloo::transport::UnboundBuffer* out, gloo::transport::UnboundBuffer* in) {
  const std::lock_guard guard(lock_);
  out_ = out;
  in_ = in;
}

void PeerMonitor::abort(const std::string& reason) {
  try {
    client_.set(prefix_ + "abort", fmt::format("rank {} failed: {}", options_.rank, reason.substr(0, 2000)));
  } catch (const Error&) {  // the others will see that this rank is gone
  }
}

void PeerMonitor::end() {
  std::string cause;
  {
    const std::lock_guard guard(lock_);
    if (error_) cause = error_->message();
  }
  try {
    // With the reason: whoever sees this before the cause itself is to name the cause, not the one that fled from it.
    client_.set(key(options_.rank), std::string(kLeft) + cause.substr(0, 2000));
  } catch (const Error&) {  // leaving a broken group
  }
  break_group(peer_lost("this rank has left the group"));
  stop();
}

void PeerMonitor::suspect() {
  if (!connection_lost_.exchange(true)) changed_.notify_all();
}

void PeerMonitor::check() const {
  const std::lock_guard guard(lock_);
  if (error_) throw *error_;
}

void PeerMonitor::explain(const std::string& what) {
  connection_lost_ = true;
  changed_.notify_all();
  std::unique_lock guard(lock_);
  changed_.wait_for(guard, std::chrono::duration<double>(options_.timeout_seconds + 2),
                    [this] { return error_.has_value(); });
  if (error_) throw *error_;
  throw peer_lost(fmt::format("a connection to another rank broke: {}", what));
}

void PeerMonitor::break_group(const Error& error) {
  const std::lock_guard guard(lock_);
  if (error_) return;  // the first reason stays
  error_ = error;
  changed_.notify_all();
  if (in_ != nullptr) in_->abortWaitRecv();
  if (out_ != nullptr) out_->abortWaitSend();
}

// Seconds without a post after which a rank is taken for dead.
double PeerMonitor::patience() const {
  const double missing_posts = 3 * pause_.count() + 0.5;
  return connection_lost_ ? std::min(missing_posts, options_.timeout_seconds) : options_.timeout_seconds;
}

void PeerMonitor::run() {
  Clock::time_point answered = Clock::now();
  std::unique_lock guard(lock_);
  while (!stopping_ && !error_) {
    guard.unlock();
    std::optional<Error> found;
    try {
      post();
      found = look_around();
      answered = Clock::now();
    } catch (const Error& error) {
      if (seconds_since(answered) > patience())
        found =
            peer_lost(fmt::format("rank 0 is lost: {}", error.message())).mend("see that rank 0 and its host are up");
    }
    if (found) break_group(*found);
    guard.lock();
    changed_.wait_for(guard, pause_, [this] { return stopping_ || error_; });
  }
}

void PeerMonitor::post() {
  const char* operation = operation_.load();
  client_.set(key(options_.rank), fmt::format("{} {} {} {}", ++beats_, events_.load(), mark_.load(),
                                              operation != nullptr ? operation : ""));
}

void PeerMonitor::read(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const std::optional<std::string> text = client_.get(key(rank));
  if (!text || peer.left) return;
  if (text->starts_with(kLeft)) {
    peer.left = true;
    peer.cause = text->substr(kLeft.size());
    return;
  }
  std::istringstream fields(*text);
  std::uint64_t beats = 0, events = 0;
  fields >> beats >> events >> peer.mark >> peer.operation;
  const bool waits = !fields.fail();  // without an operation the last field is missing
  if (beats != peer.beats) peer.heard = Clock::now();
  if (events != peer.events || waits != peer.waits) peer.moved = Clock::now();
  peer.beats = beats;
  peer.events = events;
  peer.waits = waits;
}

std::optional<Error> PeerMonitor::look_around() {
  if (const auto aborted = client_.get(prefix_ + "abort")) return peer_lost(*aborted);
  for (int r = 0; r < options_.size; ++r) read(r);
  std::optional<Error> left;
  for (int r = 0; r < options_.size; ++r) {
    const Peer& peer = peers_[static_cast<std::size_t>(r)];
    if (r == options_.rank) continue;
    if (peer.left) {
      if (connection_lost_ && !left)
        left = peer_lost(peer.cause.empty() ? fmt::format("rank {} has left", r) : peer.cause);
      continue;
    }
    if (const double silent = seconds_since(peer.heard); silent > patience()) {
      return peer_lost(fmt::format("rank {} died or is cut off: not heard of for {:.1f} s", r, silent))
          .mend("its own error, if it gave one, says why; else see that its host is up and can be reached");
    }
    if (const double quiet = seconds_since(peer.moved); !peer.waits && quiet > options_.timeout_seconds) {
      return peer_lost(fmt::format("rank {} made no progress for {:.1f} s", r, quiet))
          .mend("see what that rank does; --timeout waits longer");
    }
  }
  // A dead rank counts more than one that left: it left because of the dead one.
  return left ? left : all_wait();
}

std::optional<Error> PeerMonitor::all_wait() const {
  double quiet = 1e9;
  bool agree = true;
  std::string where;
  for (int r = 0; r < options_.size; ++r) {
    const Peer& peer = peers_[static_cast<std::size_t>(r)];
    if (peer.left) continue;
    if (!peer.waits) return std::nullopt;
    quiet = std::min(quiet, seconds_since(peer.moved));
    agree = agree && peer.operation == peers_[0].operation && peer.mark == peers_[0].mark;
    if (r < 8) where += fmt::format("{}rank {} in {}", where.empty() ? "" : ", ", r, peer.operation);
  }
  if (quiet <= options_.timeout_seconds) return std::nullopt;
  if (!agree) {
    return internal_error(
        fmt::format("the ranks are in different operations, or in ones of different sizes, and wait "
                    "for one another: {}",
                    where));
  }
  return peer_lost(fmt::format("all ranks wait in {} and nothing has arrived for {:.1f} s: a connection between two of "
                               "the hosts is broken",
                               peers_[0].operation, quiet))
      .mend("see that every host reaches every other one");
}

}  // namespace convoy
