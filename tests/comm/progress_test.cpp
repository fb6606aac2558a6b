// Who counts as getting on, and what a group leaves behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "comm/shm_communicator.h"
#include "support/ranks.h"

namespace convoy {
namespace {

using testing::Connection;
using testing::RankResult;
using testing::run_ranks;
using Clock = std::chrono::steady_clock;

void sleep_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

class Progress : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !testing::can_cross_hosts()) GTEST_SKIP() << "built without Gloo";
  }
  static Connection connection(double timeout) { return {GetParam(), timeout}; }
};
INSTANTIATE_TEST_SUITE_P(OneHost, Progress, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Hosts, Progress, ::testing::Values(true));

TEST_P(Progress, WhoWaitedLongHasTheWholeTimeoutAgain) {
  // No rank is ever silent for a whole second, but rank 0 waits for most of one and then computes.
  const auto results = run_ranks(
      2,
      [&](Communicator& c) -> std::string {
        for (int round = 0; round < 3; ++round) {
          c.barrier();
          if (c.rank() == 1) sleep_ms(750);
          c.barrier();
          if (c.rank() == 0) sleep_ms(600);
        }
        c.barrier();
        return "met";
      },
      connection(1.0));
  for (const RankResult& result : results) EXPECT_EQ(result.value, "met") << result.failure;
}

TEST_P(Progress, SendingAndReceivingIsProgress) {
  const auto results = run_ranks(
      2,
      [&](Communicator& c) -> std::string {
        std::vector<std::byte> bytes(1000);
        const int other = 1 - c.rank();
        for (int i = 0; i < 25; ++i) {
          if (c.rank() == 0) {
            sleep_ms(60);
            c.send(bytes, other);
            c.receive(bytes, other);
          } else {
            c.receive(bytes, other);
            sleep_ms(60);
            c.send(bytes, other);
          }
        }
        return "met";
      },
      connection(1.0));
  for (const RankResult& result : results) EXPECT_EQ(result.value, "met") << result.failure;
}

TEST_P(Progress, OfThreeTheHungOneIsNamedNotOneThatWaits) {
  for (const int hung : {0, 2}) {
    const auto results = run_ranks(
        3,
        [&](Communicator& c) -> std::string {
          c.barrier();
          if (c.rank() == hung) {
            sleep_ms(4500);
            return "";
          }
          try {
            c.barrier();
          } catch (const Error& error) {
            const std::string text = error.what();
            sleep_ms(1000);  // stays, so that the others see a hung rank and not one that left
            return text;
          }
          return "no error";
        },
        connection(1.0));
    for (int r = 0; r < 3; ++r) {
      if (r == hung) continue;
      const RankResult& result = results[static_cast<std::size_t>(r)];
      EXPECT_EQ(result.value.rfind("rank " + std::to_string(hung) + " made no progress", 0), 0u)
          << result.value << result.failure;
    }
  }
}

TEST_P(Progress, AGroupEndsWithOperationsUnderWay) {
  const auto results = run_ranks(
      2,
      [&](Communicator& c) -> std::string {
        static std::vector<float> data(2'000'000);
        static const ReducePiece piece{reinterpret_cast<std::byte*>(data.data()),
                                       static_cast<std::int64_t>(data.size())};
        c.barrier();
        if (c.rank() == 1) {
          sleep_ms(4000);
          return "";
        }
        for (int i = 0; i < 3; ++i) c.start_all_reduce(DType::kF32, std::span(&piece, 1));
        return "left";  // as when something else fails: the operations are not waited for
      },
      connection(1.0));
  EXPECT_EQ(results[0].value, "left") << results[0].failure;
  EXPECT_EQ(results[0].signal, 0);
}

TEST_P(Progress, AMessageOfAnotherLengthIsAnErrorNotDamage) {
  const auto results = run_ranks(
      2,
      [&](Communicator& c) -> std::string {
        std::vector<std::byte> bytes(c.rank() == 0 ? 100 : 50);
        if (c.rank() == 0) {
          c.send(bytes, 1);
          c.barrier();
        } else {
          c.receive(bytes, 0);
        }
        return "no error";
      },
      connection(1.5));
  EXPECT_NE(results[1].failure, "") << results[1].value;
}

TEST_P(Progress, DifferentOperationsAreAnErrorNotDamage) {
  for (const bool other_kind : {false, true}) {
    const auto results = run_ranks(
        2,
        [&](Communicator& c) -> std::string {
          std::vector<float> data(100'000);
          const ReducePiece piece{reinterpret_cast<std::byte*>(data.data()), c.rank() == 0 ? 100'000 : 50'000};
          try {
            if (other_kind && c.rank() == 1) {
              c.barrier();
            } else {
              c.all_reduce(DType::kF32, std::span(&piece, 1));
            }
          } catch (const Error& error) {
            const std::string text = std::to_string(static_cast<int>(error.status())) + " " + error.what();
            sleep_ms(500);
            return text;
          }
          return "no error";
        },
        connection(1.5));
    for (const RankResult& result : results) {
      EXPECT_EQ(result.value.rfind("1 ", 0), 0u) << result.value << result.failure;
      EXPECT_NE(result.value.find("operation"), std::string::npos) << result.value << result.failure;
    }
  }
}

TEST_P(Progress, AKilledRankIsNoticedLongBeforeTheTimeout) {
  for (const int victim : {0, 2}) {
    const auto results = run_ranks(
        3,
        [&](Communicator& c) -> std::string {
          c.barrier();
          if (c.rank() == victim) ::kill(::getpid(), SIGKILL);
          const auto begin = Clock::now();
          try {
            c.barrier();
            return "no error";
          } catch (const Error& error) {
            const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
            return std::string(seconds < (GetParam() ? 10 : 1) ? "soon: " : "late: ") + error.what();
          }
        },
        connection(40));
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      const RankResult& result = results[static_cast<std::size_t>(r)];
      EXPECT_EQ(result.value.rfind("soon: rank " + std::to_string(victim), 0), 0u) << result.value << result.failure;
    }
  }
}

TEST_P(Progress, TheLastMessageOfOneThatLeavesArrives) {
  for (int round = 0; round < 15; ++round) {
    const auto results = run_ranks(
        2,
        [&](Communicator& c) -> std::string {
          std::vector<std::byte> bytes(1000);
          if (c.rank() == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(19'500 + 100 * round));
            c.send(bytes, 1);
          } else {
            c.receive(bytes, 0);
          }
          return "met";
        },
        connection(5));
    for (const RankResult& result : results) EXPECT_EQ(result.value, "met") << result.failure;
  }
}

int objects_in_shared_memory(const std::string& part) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    found += entry.path().filename().string().find(part) != std::string::npos ? 1 : 0;
  return found;
}

ShmOptions shm_options(const std::string& name, int rank, int size) {
  ShmOptions options;
  options.name = name;
  options.rank = rank;
  options.size = size;
  options.timeout_seconds = 10;
  return options;
}

// Forks; the child's exit status is what `body` returns.
pid_t in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int status = 99;
  try {
    status = body();
  } catch (const std::exception&) {
  }
  ::_exit(status);
}
int status_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Leftovers, OfAJobKilledWhileItStartsDoNotDisturbTheNext) {
  const std::string name = "convoy-test-leftover-" + std::to_string(::getpid());
  // Rank 0 of a job whose rank 1 never comes.
  const pid_t killed = in_child([&] {
    make_shm_communicator(shm_options(name, 0, 2));
    return 0;
  });
  for (int i = 0; i < 500 && objects_in_shared_memory(name) == 0; ++i) sleep_ms(10);
  ASSERT_EQ(objects_in_shared_memory(name), 1);
  ::kill(killed, SIGKILL);
  status_of(killed);
  ASSERT_EQ(objects_in_shared_memory(name), 1);
  // Rank 1 first: it must not take the leftover for its job.
  std::vector<pid_t> children;
  for (const int rank : {1, 0}) {
    children.push_back(in_child([&, rank] {
      const auto c = make_shm_communicator(shm_options(name, rank, 2));
      c->barrier();
      return 7;
    }));
    sleep_ms(100);
  }
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 7);
  EXPECT_EQ(objects_in_shared_memory(name), 0);
}

TEST(Leftovers, AKilledJobLeavesNoSharedMemory) {
  const std::string name = "convoy-test-killed-" + std::to_string(::getpid());
  std::vector<pid_t> children;
  for (const int rank : {0, 1}) {
    children.push_back(in_child([&, rank] {
      const auto c = make_shm_communicator(shm_options(name, rank, 2));
      for (;;) c->barrier();
      return 0;
    }));
  }
  sleep_ms(300);
  EXPECT_EQ(objects_in_shared_memory(name), 0) << "the name is freed once all ranks are there";
  for (const pid_t child : children) ::kill(child, SIGKILL);
  for (const pid_t child : children) status_of(child);
  EXPECT_EQ(objects_in_shared_memory(name), 0);
}

TEST(Leftovers, TwoJobsAtOnceDoNotMeet) {
  // The same ranks and master; jobs, then tokens, that differ.
  const std::string mark = std::to_string(::getpid());
  const std::vector<std::pair<std::string, std::string>> jobs = {
      {"a" + mark, "x"}, {"b" + mark, "x"}, {"a" + mark, "y"}};
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      children.push_back(in_child([&, rank, j] {
        CommunicatorOptions options;
        options.rank = options.local_rank = rank;
        options.size = options.local_size = 2;
        options.job = jobs[j].first;
        options.token = jobs[j].second;
        const auto c = connect(options);
        double sum = static_cast<double>(j + 1);
        const ReducePiece piece{reinterpret_cast<std::byte*>(&sum), 1};
        c->all_reduce(DType::kF64, std::span(&piece, 1));
        c->barrier();
        return sum == 2 * static_cast<double>(j + 1) ? 7 : 8;
      }));
    }
  }
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 7);
}

}  // namespace
}  // namespace convoy
