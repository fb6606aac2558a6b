#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "comm/rendezvous.h"
#include "support/ranks.h"

namespace convoy {
namespace {

using testing::RankResult;
using testing::run_ranks;
using Clock = std::chrono::steady_clock;

void sum_for_ever(Communicator& c) {
  std::vector<float> data(500'000);
  const ReducePiece piece{reinterpret_cast<std::byte*>(data.data()), static_cast<std::int64_t>(data.size())};
  while (true) c.all_reduce(DType::kF32, std::span(&piece, 1));
}

TEST(Faults, AKilledRankIsNoticedAtOnceByAllOthers) {
  for (const int victim : {0, 2}) {
    const auto results = run_ranks(3, [&](Communicator& c) -> std::string {
      std::thread killer;
      if (c.rank() == victim) {
        killer = std::thread([] {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          ::kill(::getpid(), SIGKILL);
        });
      }
      const auto begin = Clock::now();
      try {
        sum_for_ever(c);
      } catch (const Error& error) {
        EXPECT_EQ(error.status(), Status::kPeerLost);
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        return std::string(seconds < 2 ? "soon: " : "late: ") + error.what();
      }
      return "";
    });
    const std::string named = "rank " + std::to_string(victim) + " died";
    for (int r = 0; r < 3; ++r) {
      const RankResult& result = results[static_cast<std::size_t>(r)];
      if (r == victim) {
        EXPECT_EQ(result.signal, SIGKILL);
      } else {
        EXPECT_NE(result.value.find(named), std::string::npos) << result.value << result.failure;
        EXPECT_EQ(result.value.rfind("soon", 0), 0u) << result.value;
      }
    }
  }
}

TEST(Faults, AHungRankIsNamedAfterTheTimeout) {
  const auto results = run_ranks(
      2,
      [&](Communicator& c) -> std::string {
        c.barrier();
        if (c.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(4));
          return "";
        }
        const auto begin = Clock::now();
        try {
          c.barrier();
        } catch (const Error& error) {
          const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
          return (seconds > 0.9 && seconds < 3 ? "in time: " : "not in time: ") + std::string(error.what());
        }
        return "no error";
      },
      testing::Connection{false, 1.0});
  EXPECT_EQ(results[0].value.rfind("in time: rank 1 made no progress", 0), 0u) << results[0].value;
}

TEST(Faults, WhoFledFromAHungRankIsNotNamedInItsPlace) {
  const auto results = run_ranks(
      3,
      [&](Communicator& c) -> std::string {
        c.barrier();
        if (c.rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(5));
        // Comes when rank 1 has given rank 2 up and left.
        for (int i = 0; c.rank() == 0 && i < 25; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          c.progress();
        }
        c.barrier();
        return "no error";
      },
      testing::Connection{false, 1.0});
  for (const int r : {0, 1})
    EXPECT_EQ(results[static_cast<std::size_t>(r)].failure.rfind("rank 2 made no progress", 0), 0u)
        << results[static_cast<std::size_t>(r)].failure;
}

TEST(Faults, ARankThatGetsOnIsWaitedFor) {
  const auto results = run_ranks(
      2,
      [&](Communicator& c) -> std::string {
        if (c.rank() == 1) {
          for (int i = 0; i < 25; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            c.progress();
          }
        }
        c.barrier();
        return "met";
      },
      testing::Connection{false, 1.0});
  for (const RankResult& result : results) EXPECT_EQ(result.value, "met") << result.failure;
}

// Without meeting anyone, as while a GPU's operation runs.
TEST(Faults, WhoeverLooksAroundSeesThatARankDiedOrAborted) {
  for (const bool aborts : {false, true}) {
    for (const bool across_hosts : {false, true}) {
      if (across_hosts && !testing::can_cross_hosts()) break;
      const auto results = run_ranks(
          2,
          [&](Communicator& c) -> std::string {
            c.barrier();
            const auto begin = Clock::now();
            while (std::chrono::duration<double>(Clock::now() - begin).count() < 8) {
              c.progress();
              c.look_around(c.rank() == 0 && across_hosts);
              std::this_thread::sleep_for(std::chrono::milliseconds(10));
              if (c.rank() == 1 && Clock::now() - begin > std::chrono::milliseconds(300)) {
                if (!aborts) ::kill(::getpid(), SIGKILL);
                c.abort("of its own");
                return "";
              }
            }
            return "nothing";
          },
          testing::Connection{across_hosts, 3.0});
      EXPECT_EQ(results[0].failure.rfind(aborts ? "rank 1 failed: of its own" : "rank 1 died", 0), 0u)
          << across_hosts << " " << results[0].failure << results[0].value;
    }
  }
}

TEST(Faults, ARankThatLeftIsLostOnlyToWhomItIsSuspect) {
  const auto results = run_ranks(2, [&](Communicator& c) -> std::string {
    c.barrier();
    if (c.rank() == 1) return "";
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    c.look_around(false);
    try {
      c.look_around(true);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  });
  EXPECT_EQ(results[0].value, "rank 1 has left (seen by rank 0)") << results[0].failure;
}

TEST(Faults, AbortTellsTheReason) {
  const auto results = run_ranks(3, [&](Communicator& c) -> std::string {
    if (c.rank() == 1) {
      c.abort("the disk is full");
      return "";
    }
    c.barrier();
    return "no error";
  });
  for (const int r : {0, 2}) {
    EXPECT_NE(results[static_cast<std::size_t>(r)].failure.find("rank 1 failed: the disk is full"), std::string::npos)
        << results[static_cast<std::size_t>(r)].failure;
  }
}

TEST(Faults, ARankThatLeavesIsNamed) {
  const auto results = run_ranks(2, [&](Communicator& c) -> std::string {
    if (c.rank() == 0) return "";
    c.barrier();
    return "no error";
  });
  EXPECT_FALSE(results[1].failure.empty());
  EXPECT_NE(results[1].failure.find("rank 0"), std::string::npos) << results[1].failure;
}

TEST(Faults, DifferentOperationsAreAnErrorNotDamage) {
  const auto results = run_ranks(2, [&](Communicator& c) -> std::string {
    std::vector<float> data(100);
    const ReducePiece piece{reinterpret_cast<std::byte*>(data.data()), c.rank() == 0 ? 100 : 50};
    c.all_reduce(DType::kF32, std::span(&piece, 1));
    return "no error";
  });
  for (const RankResult& result : results)
    EXPECT_NE(result.failure.find("another"), std::string::npos) << result.failure;
}

TEST(Faults, AFailureInTheBackgroundIsRethrownByWait) {
  const auto results = run_ranks(2, [&](Communicator& c) -> std::string {
    if (c.rank() == 1) return "";
    std::vector<float> data(100);
    const ReducePiece piece{reinterpret_cast<std::byte*>(data.data()), 100};
    const auto ticket = c.start_all_reduce(DType::kF32, std::span(&piece, 1));
    c.wait(ticket);
    return "no error";
  });
  EXPECT_NE(results[0].failure.find("rank 1"), std::string::npos) << results[0].failure;
}

TEST(HostFaults, AKilledRankIsNamedWithinTheTimeout) {
  if (!testing::can_cross_hosts()) GTEST_SKIP() << "built without Gloo";
  for (const int victim : {1, 0}) {
    const auto results = run_ranks(
        3,
        [&](Communicator& c) -> std::string {
          std::thread killer;
          if (c.rank() == victim) {
            killer = std::thread([] {
              std::this_thread::sleep_for(std::chrono::milliseconds(300));
              ::kill(::getpid(), SIGKILL);
            });
          }
          const auto begin = Clock::now();
          try {
            sum_for_ever(c);
          } catch (const Error& error) {
            EXPECT_EQ(error.status(), Status::kPeerLost);
            const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
            return std::string(seconds < 15 ? "soon: " : "late: ") + error.what();
          }
          return "";
        },
        testing::Connection{true, 2.0});
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      const std::string& value = results[static_cast<std::size_t>(r)].value;
      EXPECT_EQ(value.rfind("soon", 0), 0u) << value << results[static_cast<std::size_t>(r)].failure << " signal "
                                            << results[static_cast<std::size_t>(r)].signal;
      EXPECT_NE(value.find("rank " + std::to_string(victim)), std::string::npos) << value;
    }
  }
}

// Gloo's writes to the socket of a rank that has just died raise SIGPIPE; whether they do is a matter of microseconds,
// so a pipe stands in for the socket.
TEST(HostFaults, AWriteToADeadPeerDoesNotEndTheProcess) {
  if (!testing::can_cross_hosts()) GTEST_SKIP() << "built without Gloo";
  const auto results = run_ranks(
      2,
      [&](Communicator& c) -> std::string {
        c.barrier();
        int ends[2] = {};
        EXPECT_EQ(::pipe(ends), 0);
        ::close(ends[0]);
        return ::write(ends[1], "x", 1) < 0 && errno == EPIPE ? "an error" : "no error";
      },
      testing::Connection{true, 5.0});
  for (const RankResult& result : results) EXPECT_EQ(result.value, "an error") << "signal " << result.signal;
}

TEST(HostFaults, ARankWithAnotherTokenIsToldToTheOneThatWaits) {
  if (!testing::can_cross_hosts()) GTEST_SKIP() << "built without Gloo";
  CommunicatorOptions options;
  options.size = 2;
  options.token = "secret";
  options.master_port = testing::free_port();
  options.serve_rendezvous = true;
  options.timeout_seconds = 1;
  std::thread stranger([&] {
    RendezvousClient client("127.0.0.1", options.master_port, "Secret");
    EXPECT_THROW(client.wait_for_server(5), Error);
  });
  std::string failure;
  try {
    connect(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kPeerLost);
    failure = error.what();
  }
  stranger.join();
  EXPECT_NE(failure.find("not every rank joined within 1 s"), std::string::npos) << failure;
  EXPECT_NE(failure.find("127.0.0.1 was refused"), std::string::npos) << failure;
}

TEST(HostFaults, ARankThatGetsOnIsWaitedForAndAbortTellsTheReason) {
  if (!testing::can_cross_hosts()) GTEST_SKIP() << "built without Gloo";
  const auto results = run_ranks(
      2,
      [&](Communicator& c) -> std::string {
        if (c.rank() == 1) {
          for (int i = 0; i < 25; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            c.progress();
          }
        }
        c.barrier();
        if (c.rank() == 1) {
          c.abort("the disk is full");
          std::this_thread::sleep_for(std::chrono::seconds(1));
          return "";
        }
        c.barrier();
        return "no error";
      },
      testing::Connection{true, 1.0});
  EXPECT_NE(results[0].failure.find("rank 1 failed: the disk is full"), std::string::npos) << results[0].failure;
}

}  // namespace
}  // namespace convoy
