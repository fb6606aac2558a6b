#include "launch/supervisor.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/error.h"
#include "base/log.h"

namespace convoy {
namespace {

// Binds to `port` (0: any) and returns the port; 0 if that fails.
int bind_port(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int reuse = 1;  // a port of which only ended connections are left is free
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t length = sizeof(address);
  const bool bound = fd >= 0 && ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)) == 0 &&
                     ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (fd >= 0) ::close(fd);
  return bound ? ntohs(address.sin_port) : 0;
}

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

std::vector<WorkerProcess::Start> rank_starts(const SupervisorOptions& options, int ranks, int restart,
                                              const std::vector<std::string>& words) {
  const int whole_restart = options.first_restart + restart;
  // A new attempt must not meet what the last one left behind.
  const std::string job = options.job.empty() ? random_word() : fmt::format("{}-{}", options.job, whole_restart);
  const std::string token = options.token.empty() ? random_word() : options.token;
  const int port = options.master_port != 0 ? options.master_port : free_port();
  const int world = options.world_size != 0 ? options.world_size : ranks;
  const int cores = usable_cores();
  std::vector<WorkerProcess::Start> starts;
  for (int local = 0; local < ranks; ++local) {
    const int rank = options.first_rank + local;
    WorkerProcess::Start start;
    start.program = options.program;
    start.words = words;
    start.name = fmt::format("rank {}", rank);
    start.prefix = fmt::format("[rank {}] ", rank);
    start.speaks = rank == 0;
    if (!options.log_dir.empty()) start.log = options.log_dir / fmt::format("rank-{}.log", rank);
    start.environment = options.environment;
    for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{
             {"CONVOY_RANK", std::to_string(rank)},
             {"CONVOY_WORLD_SIZE", std::to_string(world)},
             {"CONVOY_LOCAL_RANK", std::to_string(local)},
             {"CONVOY_LOCAL_SIZE", std::to_string(ranks)},
             {"CONVOY_NODE", std::to_string(options.node)},
             {"CONVOY_MASTER_ADDRESS", options.master_address},
             {"CONVOY_MASTER_PORT", std::to_string(port)},
             {"CONVOY_JOB", job},
             {"CONVOY_JOB_TOKEN", token},
             {"CONVOY_RESTART_COUNT", std::to_string(whole_restart)}}) {
      start.environment.emplace_back(name, value);
    }
    const auto is_set = [&](const char* name) {
      return std::getenv(name) != nullptr || std::any_of(options.environment.begin(), options.environment.end(),
                                                         [&](const auto& variable) { return variable.first == name; });
    };
    if (!is_set("OMP_NUM_THREADS")) {
      start.environment.emplace_back("OMP_NUM_THREADS", std::to_string(std::max(1, cores / ranks)));
    }
    // Threads that spin while they wait take the cores from other ranks.
    if (!is_set("OMP_WAIT_POLICY") || ranks > cores) start.environment.emplace_back("OMP_WAIT_POLICY", "passive");
    starts.push_back(std::move(start));
  }
  return starts;
}

}  // namespace

std::string random_word() {
  std::random_device device;  // /dev/urandom
  std::string word;
  for (int i = 0; i < 4; ++i) word += fmt::format("{:08x}", device());
  return word;
}

int free_port() {
  const int port = bind_port(0);
  if (port == 0) throw storage_error("no free port on this machine");
  return port;
}

bool is_free_port(int port) {
  return bind_port(port) != 0;
}

int run_with_restarts(const RestartPolicy& policy, const Attempt::Options& options, const AttemptStarts& starts) {
  const SignalDescriptor signals;
  int count = policy.count;
  for (int restart = 0;; ++restart) {
    std::optional<std::vector<WorkerProcess::Start>> these = starts(restart, count);
    // Fewer, if the job can be cut so.
    while (!these && policy.least_count > 0 && count > policy.least_count) these = starts(restart, --count);
    if (!these) throw usage_error(fmt::format("the job cannot run on {} ranks", count));
    const Outcome outcome = Attempt(options, signals, *these).run();
    if (outcome.status == 0 || outcome.asked_to_stop != 0) return outcome.status;
    // Statuses below 128 are permanent: they would come again.
    if (outcome.status < 128 || restart >= policy.max_restarts) {
      fmt::print(stderr, "convoy: {}\n", outcome.reason);
      return outcome.status;
    }
    if (policy.least_count > 0 && count > policy.least_count) --count;
    log_warning("{}; starting again ({} of {} restarts)", outcome.reason, restart + 1, policy.max_restarts);
  }
}

int supervise(const SupervisorOptions& options, const WorkerWords& words) {
  if (!options.log_dir.empty()) {
    std::error_code failure;
    std::filesystem::create_directories(options.log_dir, failure);
    if (failure) {
      throw storage_error(fmt::format("cannot make the folder: {}", failure.message())).at(options.log_dir.string());
    }
  }
  const Attempt::Options attempt{options.grace_seconds, options.control, options.count_memory_kills};
  return run_with_restarts({options.ranks, options.least_ranks, options.max_restarts}, attempt,
                           [&](int restart, int ranks) -> std::optional<std::vector<WorkerProcess::Start>> {
                             const auto these = words(restart, ranks);
                             if (!these) return std::nullopt;
                             return rank_starts(options, ranks, restart, *these);
                           });
}

}  // namespace convoy
