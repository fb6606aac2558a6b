#include "launch/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kUsage);
    return error.what();
  }
  return "no error";
}

const std::vector<Host> kHosts = {{"worker-0", {0, 1, 2, 3}}, {"worker-1", {0, 1, 2, 3}}};

TEST(Hostfile, HostsSlotsAndComments) {
  EXPECT_EQ(parse_hostfile("# mine\n\nworker-0 slots=4\n  worker-1\tslots=2  # old\r\n", "hosts"),
            (std::vector<Host>{{"worker-0", {0, 1, 2, 3}}, {"worker-1", {0, 1}}}));
  EXPECT_EQ(read_hostfile("/nowhere/hostfile"), std::nullopt);
}

TEST(Hostfile, ErrorsHaveTheTextsThatUsersKnow) {
  const auto error = [](const char* text) { return error_of([&] { parse_hostfile(text, "hosts"); }); };
  EXPECT_THAT(error("a slots=1\na slots=2\n"),
              HasSubstr("Hostfile contains multiple entries for a, unable to proceed with launching"));
  EXPECT_THAT(error("a slots=1\na slots=2\n"), HasSubstr("hosts:2"));
  for (const char* bad : {"a", "a slots=", "a slots=x", "a 4", "a slots=-1", "a slots=99999999999", "-oX slots=1"}) {
    EXPECT_THAT(error(bad),
                HasSubstr(std::string("Hostfile contains a bad entry: ") + bad + ", unable to proceed with launching"));
  }
  EXPECT_THAT(error("# nothing\n"),
              HasSubstr("Hostfile is empty or not formatted correctly, unable to proceed with launching."));
}

TEST(Hostfile, IncludeAndExclude) {
  const auto included = [](const std::string& text) { return choose_hosts(kHosts, {.include = text}); };
  const auto excluded = [](const std::string& text) { return choose_hosts(kHosts, {.exclude = text}); };
  EXPECT_EQ(included("worker-0@worker-1:0,2"), (std::vector<Host>{{"worker-0", {0, 1, 2, 3}}, {"worker-1", {0, 2}}}));
  EXPECT_EQ(included("worker-1:2,0,2"), (std::vector<Host>{{"worker-1", {0, 2}}}));
  EXPECT_EQ(excluded("worker-1:0"), (std::vector<Host>{{"worker-0", {0, 1, 2, 3}}, {"worker-1", {1, 2, 3}}}));
  EXPECT_EQ(excluded("worker-0"), (std::vector<Host>{{"worker-1", {0, 1, 2, 3}}}));
  EXPECT_EQ(excluded("worker-0:0,1,2,3"), (std::vector<Host>{{"worker-1", {0, 1, 2, 3}}}));
}

TEST(Hostfile, CountsOfNodesAndSlots) {
  EXPECT_EQ(choose_hosts(kHosts, {.num_nodes = 1, .num_gpus = 2}), (std::vector<Host>{{"worker-0", {0, 1}}}));
  EXPECT_EQ(choose_hosts(kHosts, {}), kHosts);
}

TEST(Hostfile, ChoicesThatCannotBe) {
  const auto error = [](const HostChoice& choice) { return error_of([&] { choose_hosts(kHosts, choice); }); };
  EXPECT_THAT(error({.include = "worker-2"}), HasSubstr("Hostname 'worker-2' not found in hostfile"));
  EXPECT_THAT(error({.exclude = "worker-0:7"}), HasSubstr("No slot '7' specified on host 'worker-0'"));
  EXPECT_THAT(error({.include = "worker-0:x"}), HasSubstr("No slot 'x' specified on host 'worker-0'"));
  EXPECT_THAT(error({.include = "worker-0", .exclude = "worker-1"}), HasSubstr("mutually exclusive"));
  EXPECT_THAT(error({.include = "worker-0", .num_gpus = 1}),
              HasSubstr("Cannot specify num_nodes/gpus with include/exclude"));
  EXPECT_THAT(error({.exclude = "worker-0@worker-1"}), HasSubstr("Unable to proceed, no GPU resources available"));
  EXPECT_THAT(error({.num_nodes = 3}), HasSubstr("--num_nodes 3, but the hostfile has 2"));
  EXPECT_THAT(error({.num_gpus = 5}), HasSubstr("--num_gpus 5, but host worker-0 has 4"));
}

TEST(EnvironmentFile, LaterWins) {
  EXPECT_THAT(parse_environment_file("A=1\n# no\n\nB=x=y z\nA=2\n", "f"),
              ElementsAre(Pair("A", "2"), Pair("B", "x=y z")));
  EXPECT_THAT(error_of([] { parse_environment_file("A=1\nnothing\n", "f"); }), HasSubstr("f:2"));
}

}  // namespace
}  // namespace convoy
