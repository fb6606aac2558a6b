#include "launch/attempt.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPeerLostStatus = static_cast<int>(Status::kPeerLost);

}  // namespace

std::int64_t out_of_memory_kills() {
  std::ifstream own("/proc/self/cgroup");
  std::string line, unified, memory;
  while (std::getline(own, line)) {
    if (line.starts_with("0::")) unified = line.substr(3);
    if (const std::size_t at = line.find(":memory:"); at != std::string::npos) memory = line.substr(at + 8);
  }
  // The second of each pair is what a container sees. Version 1 of control groups keeps the count elsewhere.
  for (const std::string& path :
       {"/sys/fs/cgroup" + unified + "/memory.events", std::string("/sys/fs/cgroup/memory.events"),
        "/sys/fs/cgroup/memory" + memory + "/memory.oom_control",
        std::string("/sys/fs/cgroup/memory/memory.oom_control"), std::string("/proc/vmstat")}) {
    std::ifstream events(path);
    std::string key;
    std::int64_t count = 0;
    while (events >> key >> count) {
      if (key == "oom_kill") return count;
    }
  }
  return 0;
}

Attempt::Attempt(Options options, const SignalDescriptor& signals, const std::vector<WorkerProcess::Start>& starts)
    : options_(std::move(options)),
      signals_(signals),
      kills_before_(options_.count_memory_kills()),
      screen_(STDERR_FILENO, ::isatty(STDOUT_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1) {
  if (options_.control >= 0) ::fcntl(options_.control, F_SETFL, O_NONBLOCK);
  for (const WorkerProcess::Start& start : starts) workers_.push_back(std::make_unique<WorkerProcess>(start, screen_));
}

Outcome Attempt::run() {
  while (anyone_runs()) {
    wait_for_something();
    answer_signals();
    read_control();
    collect();
    if (deadline_ && Clock::now() > *deadline_ && !killed_) {
      killed_ = true;
      for (const auto& worker : workers_) worker->send_signal(SIGKILL);
    }
  }
  screen_.flush();
  return outcome();
}

bool Attempt::anyone_runs() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) { return worker->running(); });
}

void Attempt::wait_for_something() {
  std::vector<pollfd> watched = {{signals_.fd(), POLLIN, 0}};
  if (options_.control >= 0) watched.push_back({options_.control, POLLIN, 0});
  for (const auto& worker : workers_) {
    if (worker->out() >= 0) watched.push_back({worker->out(), POLLIN, 0});
    if (worker->err() >= 0) watched.push_back({worker->err(), POLLIN, 0});
    if (worker->in() >= 0) watched.push_back({worker->in(), POLLOUT, 0});
  }
  int patience = -1;
  const auto at_most = [&](std::chrono::milliseconds time) {
    const int whole = static_cast<int>(std::max<std::int64_t>(0, time.count())) + 1;
    patience = patience < 0 ? whole : std::min(patience, whole);
  };
  if (deadline_ && !killed_) {
    at_most(std::chrono::duration_cast<std::chrono::milliseconds>(*deadline_ - Clock::now()));
  }
  if (const auto time = screen_.patience()) at_most(*time);
  ::poll(watched.data(), watched.size(), patience);
  for (const auto& worker : workers_) {
    if (worker->err() >= 0) worker->read_err();
    if (worker->out() >= 0) worker->read_out();
    if (worker->in() >= 0) worker->write_in();
  }
  screen_.flush_old();
}

void Attempt::answer_signals() {
  while (const int number = signals_.take()) {
    if (number != SIGCHLD) answer(number);
  }
}

// Ranks know SIGINT and SIGTERM: finish the step, save, end. SIGHUP and SIGUSR1 mean that too, so they go on as
// SIGTERM.
void Attempt::answer(int number) {
  if (number == SIGUSR1) {
    if (early_warning_ || stop_signal_ != 0) return;
    early_warning_ = true;
    number = SIGTERM;
  } else if (stop_signal_ != 0) {
    killed_ = true;
    number = SIGKILL;
  } else {
    stop_signal_ = number == SIGHUP ? SIGTERM : number;
    // A batch system's end after its early warning is no impatience: the ranks are ending already.
    if (early_warning_) return;
    number = stop_signal_;
  }
  for (const auto& worker : workers_) worker->send_signal(number);
}

void Attempt::read_control() {
  if (options_.control < 0) return;
  std::array<char, 256> buffer;
  while (true) {
    const ssize_t got = ::read(options_.control, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      control_text_ += "end\n";
      options_.control = -1;
      break;
    }
    control_text_.append(buffer.data(), static_cast<std::size_t>(got));
  }
  for (std::size_t end = control_text_.find('\n'); end != std::string::npos; end = control_text_.find('\n')) {
    const std::string line = control_text_.substr(0, end);
    control_text_.erase(0, end + 1);
    if (line == "end") {
      if (stop_signal_ == 0) stop_signal_ = SIGTERM;
      end_the_others(true);
    }
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
      if (line == fmt::format("signal {}", number)) answer(number);
    }
  }
}

void Attempt::end_the_others(bool ask) {
  if (!deadline_) {
    deadline_ = Clock::now() +
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.grace_seconds));
  }
  if (!ask || asked_) return;
  asked_ = true;
  // They find out by themselves too, and say so; whoever does neither is killed.
  for (const auto& worker : workers_) worker->ask_to_end();
}

// Whether the worker's end is what a signal from outside asked for.
bool Attempt::was_asked(const WorkerProcess& worker) const {
  return (stop_signal_ != 0 && worker.status() == 128 + stop_signal_) ||
         (early_warning_ && worker.status() == 128 + SIGTERM);
}

void Attempt::collect() {
  for (const auto& worker : workers_) {
    if (!worker->collect() || worker->status() == 0) continue;
    if (killed_ && worker->signal() == SIGKILL) continue;
    ended_badly_.push_back(worker.get());
    // After a signal from outside each takes the time it needs: one may still write the checkpoint.
    // Who only lost a peer is not the first to fail: the one that did may still be about to say why.
    if (!was_asked(*worker)) end_the_others(worker->status() != kPeerLostStatus);
  }
}

// Whoever failed by itself, not for the loss of another, nor because it was told to end.
const WorkerProcess* Attempt::culprit() const {
  const WorkerProcess* second_best = nullptr;
  for (const WorkerProcess* worker : ended_badly_) {
    if (was_asked(*worker)) continue;
    if (worker->status() != kPeerLostStatus && worker->status() != 128 + SIGTERM) return worker;
    if (second_best == nullptr) second_best = worker;
  }
  return second_best;
}

std::string Attempt::reason_of(const WorkerProcess& worker) const {
  if (worker.controlled() && worker.signal() == 0 && !worker.last_words().empty()) {
    return fmt::format("{}: {}", worker.name(), worker.last_words());
  }
  if (worker.signal() == SIGKILL && options_.count_memory_kills() > kills_before_) {
    return fmt::format("{} was killed: out of memory; see what takes less with: convoy plan", worker.name());
  }
  if (worker.signal() != 0) {
    return fmt::format("{} was killed by signal {} ({}){}", worker.name(), worker.signal(),
                       ::strsignal(worker.signal()),
                       worker.signal() == SIGBUS ? "; is /dev/shm full, or a file that it reads cut short?" : "");
  }
  return fmt::format("{} ended with status {}{}", worker.name(), worker.status(),
                     worker.last_words().empty() ? "" : ": " + worker.last_words());
}

Outcome Attempt::outcome() const {
  Outcome outcome;
  const WorkerProcess* worker = culprit();
  // After a stop signal, losing each other is part of ending; an error of its own (a full disk, say) is not.
  const bool stopped =
      stop_signal_ != 0 && (killed_ || !ended_badly_.empty()) && (worker == nullptr || worker->status() >= 128);
  if (stopped) {
    outcome.asked_to_stop = stop_signal_;
    outcome.status = 128 + stop_signal_;
  } else if (worker != nullptr) {
    outcome.status = worker->status();
    outcome.reason = reason_of(*worker);
  } else if (!ended_badly_.empty()) {
    outcome.asked_to_stop = SIGTERM;
    outcome.status = 128 + SIGTERM;
  }
  return outcome;
}

}  // namespace convoy
