// Ranks on two hosts that a cable joins: network namespaces with a bridge between them. Needs root and the program
// `ip`.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "support/ranks.h"

namespace convoy {
namespace {

using testing::Connection;
using testing::RankResult;
using testing::run_ranks;
using Clock = std::chrono::steady_clock;

bool run(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// Host i has the address 10.97.0.(i + 1); all hosts' cables end in a switch, which is a namespace of its own.
class Hosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::can_cross_hosts()) GTEST_SKIP() << "built without Gloo";
    if (!run("ip netns add " + the_switch()) || !run(inside(the_switch()) + "ip link add name bridge type bridge") ||
        !run(inside(the_switch()) + "ip link set bridge up"))
      GTEST_SKIP() << "no network namespaces here (they need root and iproute2)";
  }
  void TearDown() override {
    for (int i = 0; i < hosts_; ++i) run("ip netns del " + host(i));
    run("ip netns del " + the_switch());
  }

  static std::string name(const std::string& what) {
    static const pid_t pid = ::getpid();  // of the test, not of a rank
    return fmt::format("cvh{}{}", pid, what);
  }
  static std::string the_switch() { return name("s"); }
  static std::string host(int i) { return name(std::to_string(i)); }
  static std::string inside(const std::string& space) { return "ip netns exec " + space + " "; }

  // Whether `count` hosts stand and reach the switch.
  bool add_hosts(int count) {
    for (hosts_ = 0; hosts_ < count;) {
      const int i = hosts_++;
      const std::string port = fmt::format("port{}", i);
      const bool stands =
          run("ip netns add " + host(i)) &&
          run(inside(host(i)) + "ip link add eth type veth peer name " + port + " netns " + the_switch()) &&
          run(inside(the_switch()) + "ip link set " + port + " master bridge up") &&
          run(inside(host(i)) + fmt::format("ip addr add 10.97.0.{}/24 dev eth", i + 1)) &&
          run(inside(host(i)) + "ip link set eth up") && run(inside(host(i)) + "ip link set lo up");
      if (!stands) return false;
    }
    return true;
  }
  // Pulls the cable out of the switch: nobody is told.
  static void pull_cable(int i) { run(inside(the_switch()) + fmt::format("ip link set port{} nomaster", i)); }

  Connection connection(double timeout) const {
    Connection c{true, timeout};
    for (int i = 0; i < hosts_; ++i) c.namespaces.push_back(host(i));
    c.master_address = "10.97.0.1";
    return c;
  }

  int hosts_ = 0;
};

TEST_F(Hosts, SumTogether) {
  ASSERT_TRUE(add_hosts(3));
  const auto results = run_ranks(
      3,
      [](Communicator& c) -> std::string {
        std::vector<float> data(3'000'001, static_cast<float>(c.rank() + 1));
        const ReducePiece piece{reinterpret_cast<std::byte*>(data.data()), static_cast<std::int64_t>(data.size())};
        c.all_reduce(DType::kF32, std::span(&piece, 1));
        for (const float value : data) {
          if (value != 6.0F) return "wrong";
        }
        return c.name();
      },
      connection(10));
  for (const RankResult& result : results) EXPECT_EQ(result.value, "gloo") << result.failure;
}

// Sums until an error; returns it with the seconds since the cable was pulled, which rank 0 does after 300 ms.
std::string sum_until_error(Communicator& c, const std::function<void()>& pull) {
  std::vector<float> data(300'000);
  const ReducePiece piece{reinterpret_cast<std::byte*>(data.data()), static_cast<std::int64_t>(data.size())};
  c.barrier();
  const auto begin = Clock::now();
  std::thread puller;
  if (c.rank() == 0) {
    puller = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      pull();
    });
  }
  std::string found;
  try {
    while (Clock::now() - begin < std::chrono::seconds(40)) c.all_reduce(DType::kF32, std::span(&piece, 1));
    found = "no error";
  } catch (const Error& error) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    found = (error.status() == Status::kPeerLost && seconds < 12 ? "soon: " : "late: ") + std::string(error.what());
  }
  if (puller.joinable()) puller.join();
  return found;
}

TEST_F(Hosts, AHostWhoseCableIsPulledIsNamed) {
  ASSERT_TRUE(add_hosts(3));
  const auto results = run_ranks(
      3, [](Communicator& c) { return sum_until_error(c, [] { pull_cable(1); }); }, connection(2));
  for (const int r : {0, 2}) {
    const RankResult& result = results[static_cast<std::size_t>(r)];
    EXPECT_EQ(result.value.rfind("soon: rank 1 ", 0), 0u) << result.value << result.failure;
  }
  EXPECT_EQ(results[1].value.rfind("soon: ", 0), 0u) << results[1].value << results[1].failure;
}

TEST_F(Hosts, TheHostOfTheRendezvousMayBeTheLostOne) {
  ASSERT_TRUE(add_hosts(3));
  const auto results = run_ranks(
      3, [](Communicator& c) { return sum_until_error(c, [] { pull_cable(0); }); }, connection(2));
  for (const RankResult& result : results)
    EXPECT_EQ(result.value.rfind("soon: ", 0), 0u) << result.value << result.failure;
  for (const int r : {1, 2}) EXPECT_NE(results[static_cast<std::size_t>(r)].value.find("rank 0"), std::string::npos);
}

TEST_F(Hosts, TwoThatReachTheRendezvousButNotEachOtherDoNotWaitForEver) {
  ASSERT_TRUE(add_hosts(3));
  const auto results = run_ranks(
      3,
      [](Communicator& c) {
        return sum_until_error(c, [] {
          // Only the way between 1 and 2: their packets to each other go nowhere.
          run(inside(host(1)) + "ip route add blackhole 10.97.0.3/32");
          run(inside(host(2)) + "ip route add blackhole 10.97.0.2/32");
        });
      },
      connection(2));
  for (const RankResult& result : results)
    EXPECT_EQ(result.value.rfind("soon: ", 0), 0u) << result.value << result.failure;
}

}  // namespace
}  // namespace convoy
