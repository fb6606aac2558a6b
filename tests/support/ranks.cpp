#include "support/ranks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <stdexcept>

#include "base/parallel.h"

namespace convoy::testing {
namespace {

int jobs = 0;

std::string read_all(int fd, double deadline_seconds, bool* timed_out) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(deadline_seconds);
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    struct pollfd ready {
      fd, POLLIN, 0
    };
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) {
      *timed_out = true;
      return text;
    }
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

void enter_namespace(const std::string& name) {
  const int fd = ::open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) throw std::runtime_error("cannot enter the network namespace " + name);
  ::close(fd);
}

[[noreturn]] void be_rank(int rank, int ranks, const std::string& job, const Connection& connection, int port, int out,
                          const std::function<std::string(Communicator&)>& body) {
  std::string text;
  try {
    set_threads(1);
    CommunicatorOptions options;
    options.rank = options.local_rank = rank;
    options.size = options.local_size = ranks;
    options.job = job;
    options.token = "secret of " + job;
    options.timeout_seconds = connection.timeout_seconds;
    if (connection.across_hosts) {
      options.local_rank = 0;
      options.local_size = 1;
      options.master_port = port;
      options.serve_rendezvous = rank == 0;
      if (!connection.namespaces.empty()) {
        enter_namespace(connection.namespaces[static_cast<std::size_t>(rank)]);
        options.master_address = connection.master_address;
      }
    }
    const std::unique_ptr<Communicator> communicator = connect(options);
    text = "+" + body(*communicator);
  } catch (const std::exception& error) {
    text = std::string("-") + error.what();
  }
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t wrote = ::write(out, text.data() + at, text.size() - at);
    if (wrote <= 0) break;
    at += static_cast<std::size_t>(wrote);
  }
  ::_exit(0);
}

}  // namespace

std::vector<RankResult> run_ranks(int ranks, const std::function<std::string(Communicator&)>& body,
                                  const Connection& connection, double deadline_seconds) {
  const int port = connection.across_hosts ? free_port() : 0;
  const std::string job = fmt::format("test-{}-{}", ::getpid(), jobs++);
  std::vector<pid_t> processes;
  std::vector<int> pipes;
  for (int r = 0; r < ranks; ++r) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) ADD_FAILURE() << "no pipe";
    const pid_t process = ::fork();
    if (process == 0) {
      ::close(ends[0]);
      for (const int other : pipes) ::close(other);
      be_rank(r, ranks, job, connection, port, ends[1], body);
    }
    ::close(ends[1]);
    processes.push_back(process);
    pipes.push_back(ends[0]);
  }
  std::vector<RankResult> results(static_cast<std::size_t>(ranks));
  bool timed_out = false;
  for (std::size_t r = 0; r < results.size(); ++r) {
    const std::string text = read_all(pipes[r], timed_out ? 0 : deadline_seconds, &timed_out);
    ::close(pipes[r]);
    if (timed_out) {
      for (const pid_t process : processes) ::kill(process, SIGKILL);
      ADD_FAILURE() << "rank " << r << " did not end within " << deadline_seconds << " s";
    }
    if (!text.empty()) (text[0] == '+' ? results[r].value : results[r].failure) = text.substr(1);
  }
  for (std::size_t r = 0; r < results.size(); ++r) {
    int status = 0;
    ::waitpid(processes[r], &status, 0);
    results[r].ended = WIFEXITED(status);
    results[r].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    // No body ends so: it was a sanitizer, or code under test that called exit(). Its empty value could pass for a
    // success.
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
      ADD_FAILURE() << "rank " << r << " ended with status " << WEXITSTATUS(status);
  }
  return results;
}

bool can_cross_hosts() {
#ifdef CONVOY_HAVE_GLOO
  return true;
#else
  return false;
#endif
}

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), length);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return ntohs(address.sin_port);
}

std::vector<std::string> run_healthy_ranks(int ranks, const std::function<std::string(Communicator&)>& body,
                                           const Connection& connection) {
  std::vector<std::string> values;
  for (const RankResult& result : run_ranks(ranks, body, connection)) {
    EXPECT_TRUE(result.ended && result.failure.empty())
        << "rank " << values.size() << ": " << result.failure << " signal " << result.signal;
    values.push_back(result.value);
  }
  return values;
}

}  // namespace convoy::testing
