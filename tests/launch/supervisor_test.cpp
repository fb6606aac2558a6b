#include "launch/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace convoy {
namespace {

struct Ended {
  int status = 0;
  std::string errors;
};

// The workers are shell scripts: `script` sees CONVOY_RANK and CONVOY_RESTART_COUNT.
class Supervisor : public ::testing::Test {
 protected:
  Supervisor() {
    folder_ = std::filesystem::temp_directory_path() / ("convoy-launch-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Supervisor() override { std::filesystem::remove_all(folder_); }

  Ended run(const std::string& script, JobOptions job, int signal_after_start = 0) const {
    const std::string log = folder_ / "errors.txt";
    const pid_t child = ::fork();
    if (child == 0) {
      std::freopen(log.c_str(), "w", stderr);
      std::freopen((folder_ / "out.txt").c_str(), "w", stdout);
      SupervisorOptions options;
      options.program = "/bin/sh";
      options.log_dir = folder_ / "logs";
      job.grace_seconds = 1;
      const int status = supervise(job, options, [&](int, int) { return std::vector<std::string>{"-c", script}; });
      std::fflush(nullptr);
      ::_exit(status);
    }
    if (signal_after_start != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      ::kill(child, signal_after_start);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    std::ifstream in(log);
    std::stringstream text;
    text << in.rdbuf();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), text.str()};
  }
  std::filesystem::path folder_;
};

JobOptions ranks(int count, int restarts = 0) {
  JobOptions job;
  job.ranks = count;
  job.max_restarts = restarts;
  return job;
}

TEST_F(Supervisor, MarksLinesAndKeepsThemWhole) {
  const Ended result = run("for i in $(seq 200); do echo \"line $i of $CONVOY_RANK in one piece\" >&2; done", ranks(4));
  EXPECT_EQ(result.status, 0);
  std::istringstream lines(result.errors);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const std::size_t mark = line.rfind("[rank ", 0) == 0 ? line.find("] ") + 2 : 0;
    EXPECT_EQ(line.substr(mark, 5), "line ") << line;
    EXPECT_EQ(line.substr(line.size() - 12), "in one piece") << line;
    if (mark == 0) continue;
    EXPECT_NE(line.find(std::string(" of ") + line[6]), std::string::npos) << line;
  }
  EXPECT_EQ(count, 800);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "logs/rank-3.log"));
}

TEST_F(Supervisor, TheFirstOwnFailureIsTheMessage) {
  const Ended failed = run("if [ $CONVOY_RANK = 2 ]; then echo 'convoy: the disk is full' >&2; exit 6; fi; "
                         "sleep 0.3; echo 'convoy: rank 2 died' >&2; exit 138",
                         ranks(3));
  EXPECT_EQ(failed.status, 6);
  EXPECT_NE(failed.errors.find("convoy: rank 2 ended with status 6: the disk is full\n"), std::string::npos) << failed.errors;
  const Ended killed = run("if [ $CONVOY_RANK = 1 ]; then kill -SEGV $$; fi; sleep 5", ranks(2));
  EXPECT_EQ(killed.status, 139);
  EXPECT_NE(killed.errors.find("rank 1 was killed by signal 11"), std::string::npos) << killed.errors;
}

TEST_F(Supervisor, WhoeverIgnoresTheEndIsKilled) {
  const auto begin = std::chrono::steady_clock::now();
  const Ended stubborn = run("if [ $CONVOY_RANK = 1 ]; then exit 3; fi; trap '' TERM; while true; do sleep 0.1; done", ranks(2));
  EXPECT_EQ(stubborn.status, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
}

TEST_F(Supervisor, PassesSignalsOn) {
  const Ended stopped = run("trap 'exit 143' TERM; while true; do sleep 0.05; done", ranks(2), SIGTERM);
  EXPECT_EQ(stopped.status, 143);
}

TEST_F(Supervisor, RestartsWhatIsWorthIt) {
  const std::string flaky = "if [ $CONVOY_RANK = 0 ] && [ $CONVOY_RESTART_COUNT -lt 2 ]; then kill -KILL $$; fi; exit 0";
  const Ended again = run(flaky, ranks(2, 5));
  EXPECT_EQ(again.status, 0) << again.errors;
  EXPECT_NE(again.errors.find("starting again (2 of 5 restarts)"), std::string::npos) << again.errors;
  EXPECT_EQ(run(flaky, ranks(2, 1)).status, 137);
  // A wrong setting stays wrong.
  const Ended permanent = run("exit 2", ranks(2, 5));
  EXPECT_EQ(permanent.status, 2);
  EXPECT_EQ(permanent.errors.find("starting again"), std::string::npos);
}

TEST_F(Supervisor, AProgramThatIsNotThereIsAnError) {
  JobOptions job = ranks(2);
  SupervisorOptions options;
  options.program = "/no/such/program";
  EXPECT_EQ(supervise(job, options, [](int, int) { return std::vector<std::string>{}; }), 127);
}

}  // namespace
}  // namespace convoy
