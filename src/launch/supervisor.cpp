#include "launch/supervisor.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "launch/worker_process.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPeerLostStatus = static_cast<int>(Status::kPeerLost);

// How often the kernel has killed a process of this control group for want of memory.
std::int64_t out_of_memory_kills() {
  std::ifstream own("/proc/self/cgroup");
  std::string line, group;
  while (std::getline(own, line)) {
    if (line.starts_with("0::")) group = line.substr(3);
  }
  for (const std::string& path : {"/sys/fs/cgroup" + group + "/memory.events", std::string("/sys/fs/cgroup/memory.events")}) {
    std::ifstream events(path);
    std::string key;
    std::int64_t count = 0;
    while (events >> key >> count) {
      if (key == "oom_kill") return count;
    }
  }
  return 0;
}

// Takes the signals that a supervisor answers to out of the process's hands, for as long as it lives.
class SignalDescriptor {
 public:
  SignalDescriptor() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
    ::sigprocmask(SIG_BLOCK, &set, &before_);
    fd_ = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  }
  ~SignalDescriptor() {
    ::close(fd_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalDescriptor(const SignalDescriptor&) = delete;
  SignalDescriptor& operator=(const SignalDescriptor&) = delete;
  int fd() const { return fd_; }
  // The next one, or 0.
  int take() const {
    signalfd_siginfo info{};
    return ::read(fd_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_{};
  int fd_ = -1;
};

struct Outcome {
  int status = 0;
  int asked_to_stop = 0;  // the signal that came from outside
  std::string reason;
};

// One attempt: all processes from their start to their end.
class Attempt {
 public:
  Attempt(const JobOptions& options, const SignalDescriptor& signals, const std::vector<WorkerProcess::Start>& starts)
      : options_(options), signals_(signals), kills_before_(out_of_memory_kills()) {
    for (const WorkerProcess::Start& start : starts) workers_.push_back(std::make_unique<WorkerProcess>(start));
  }

  Outcome run() {
    while (std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) { return worker->running(); })) {
      wait_for_something();
      answer_signals();
      collect();
      if (deadline_ && Clock::now() > *deadline_ && !killed_) {
        killed_ = true;  // whoever ends from now on ends by our hand
        signal_all(SIGKILL);
      }
    }
    return outcome();
  }

 private:
  void wait_for_something() {
    std::vector<pollfd> watched = {{signals_.fd(), POLLIN, 0}};
    for (const auto& worker : workers_) {
      if (worker->out() >= 0) watched.push_back({worker->out(), POLLIN, 0});
      if (worker->err() >= 0) watched.push_back({worker->err(), POLLIN, 0});
    }
    int patience = -1;
    if (deadline_ && !killed_) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*deadline_ - Clock::now());
      patience = std::max(0, static_cast<int>(left.count()) + 1);
    }
    ::poll(watched.data(), watched.size(), patience);
    for (const auto& worker : workers_) {
      if (worker->err() >= 0) worker->read_err();
      if (worker->out() >= 0) worker->read_out();
    }
  }

  void answer_signals() {
    while (const int number = signals_.take()) {
      if (number == SIGCHLD) continue;
      if (outcome_.asked_to_stop != 0) {
        signal_all(SIGKILL);
        continue;
      }
      outcome_.asked_to_stop = number;
      signal_all(number == SIGHUP ? SIGTERM : number);
    }
  }

  void collect() {
    for (const auto& worker : workers_) {
      int status = 0;
      if (!worker->running() || ::waitpid(worker->pid(), &status, WNOHANG) != worker->pid()) continue;
      worker->ended(status);
      if (worker->status() == 0 || (killed_ && worker->signal() == SIGKILL)) continue;
      ended_badly_.push_back(worker.get());
      if (!deadline_) {
        // The others find out by themselves and say so; whoever does not is ended.
        deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(options_.grace_seconds));
        if (outcome_.asked_to_stop == 0) signal_all(SIGTERM);
      }
    }
  }

  void signal_all(int number) {
    for (const auto& worker : workers_) worker->kill(number);
  }

  // Whoever failed by itself, not for the loss of another.
  const WorkerProcess* culprit() const {
    for (const WorkerProcess* worker : ended_badly_) {
      if (worker->status() != kPeerLostStatus && worker->status() != 128 + SIGTERM) return worker;
    }
    return ended_badly_.empty() ? nullptr : ended_badly_.front();
  }

  Outcome outcome() {
    const WorkerProcess* worker = culprit();
    if (worker == nullptr) return outcome_;
    outcome_.status = worker->status();
    if (outcome_.asked_to_stop != 0) return outcome_;
    if (worker->signal() == SIGKILL && out_of_memory_kills() > kills_before_) {
      outcome_.reason = fmt::format("{} was killed: out of memory; see what takes less with: convoy plan", worker->name());
    } else if (worker->signal() != 0) {
      outcome_.reason = fmt::format("{} was killed by signal {} ({})", worker->name(), worker->signal(),
                                    ::strsignal(worker->signal()));
    } else {
      std::string words = worker->last_words();
      if (words.starts_with("convoy: ")) words.erase(0, 8);
      outcome_.reason = fmt::format("{} ended with status {}{}", worker->name(), worker->status(),
                                    words.empty() ? "" : ": " + words);
    }
    return outcome_;
  }

  const JobOptions& options_;
  const SignalDescriptor& signals_;
  const std::int64_t kills_before_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  std::vector<const WorkerProcess*> ended_badly_;  // in the order of their ends
  std::optional<Clock::time_point> deadline_;
  bool killed_ = false;
  Outcome outcome_;
};

}  // namespace

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const bool found = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (fd >= 0) ::close(fd);
  if (!found) throw storage_error("no free port on this machine");
  return ntohs(address.sin_port);
}

std::string random_word() {
  std::random_device device;  // /dev/urandom
  std::string word;
  for (int i = 0; i < 4; ++i) word += fmt::format("{:08x}", device());
  return word;
}

int run_job(const JobOptions& options, const MakeProcesses& processes) {
  const SignalDescriptor signals;
  int ranks = options.ranks;
  for (int restart = 0;; ++restart) {
    std::optional<std::vector<WorkerProcess::Start>> these = processes(restart, ranks);
    // Fewer ranks, if the job can be cut so.
    while (!these && options.least_ranks > 0 && ranks > options.least_ranks) these = processes(restart, --ranks);
    if (!these) throw usage_error(fmt::format("the job cannot run on {} ranks", ranks));
    const Outcome outcome = Attempt(options, signals, *these).run();
    if (outcome.status == 0) return 0;
    if (outcome.asked_to_stop != 0) return outcome.status >= 128 ? outcome.status : 128 + outcome.asked_to_stop;
    if (outcome.status < 128 || restart >= options.max_restarts) {
      fmt::print(stderr, "convoy: {}\n", outcome.reason);
      return outcome.status;
    }
    if (options.least_ranks > 0 && ranks > options.least_ranks) --ranks;
    log_warning("{}; starting again ({} of {} restarts)", outcome.reason, restart + 1, options.max_restarts);
  }
}

int supervise(const JobOptions& job, const SupervisorOptions& options, const WorkerWords& words) {
  if (!options.log_dir.empty()) std::filesystem::create_directories(options.log_dir);
  return run_job(job, [&](int restart, int ranks) -> std::optional<std::vector<WorkerProcess::Start>> {
    const std::optional<std::vector<std::string>> line = words(restart, ranks);
    if (!line) return std::nullopt;
    const std::string name = options.job.empty() ? random_word() : fmt::format("{}-{}", options.job, restart);
    const std::string token = options.token.empty() ? random_word() : options.token;
    const int port = options.master_port != 0 ? options.master_port : free_port();
    const int world = options.world_size != 0 ? options.world_size : ranks;
    std::vector<WorkerProcess::Start> starts;
    for (int local = 0; local < ranks; ++local) {
      WorkerProcess::Start start;
      start.program = options.program;
      start.words = *line;
      start.rank = options.first_rank + local;
      start.speaks = start.rank == 0;
      if (!options.log_dir.empty()) start.log = options.log_dir / fmt::format("rank-{}.log", start.rank);
      start.environment = {{"CONVOY_RANK", std::to_string(start.rank)},
                           {"CONVOY_WORLD_SIZE", std::to_string(world)},
                           {"CONVOY_LOCAL_RANK", std::to_string(local)},
                           {"CONVOY_LOCAL_SIZE", std::to_string(ranks)},
                           {"CONVOY_NODE", std::to_string(options.node)},
                           {"CONVOY_MASTER_ADDRESS", options.master_address},
                           {"CONVOY_MASTER_PORT", std::to_string(port)},
                           {"CONVOY_JOB", name},
                           {"CONVOY_JOB_TOKEN", token},
                           {"CONVOY_RESTART_COUNT", std::to_string(restart)}};
      // Threads that spin while they wait take the cores from other ranks.
      if (std::getenv("OMP_WAIT_POLICY") == nullptr) start.environment.emplace_back("OMP_WAIT_POLICY", "passive");
      starts.push_back(std::move(start));
    }
    return starts;
  });
}

}  // namespace convoy
