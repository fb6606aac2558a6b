#include "launch/hostfile.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace convoy {
namespace {

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

const std::vector<Host> kHosts = {{"worker-0", {0, 1}}, {"worker-1", {0, 1, 2, 3}}};

TEST(Hostfile, ReadsDeepSpeedsFormat) {
  EXPECT_EQ(parse_hostfile("# hosts\nworker-0 slots=2\n\n  worker-1   slots=4  # big\n", "hosts"), kHosts);
  EXPECT_NE(error_of([] { parse_hostfile("a slots=1\na slots=2", "hosts"); })
                .find("Hostfile contains multiple entries for a, unable to proceed with launching [hosts:2]"),
            std::string::npos);
  EXPECT_NE(error_of([] { parse_hostfile("a slot=1", "hosts"); })
                .find("Hostfile contains a bad entry: a slot=1, unable to proceed with launching"),
            std::string::npos);
  EXPECT_NE(error_of([] { parse_hostfile("\n#\n", "hosts"); }).find("Hostfile is empty or not formatted correctly"),
            std::string::npos);
  EXPECT_NE(error_of([] { parse_hostfile("a slots=99999999999", "hosts"); }).find("bad entry"), std::string::npos);
}

TEST(Hostfile, Filters) {
  EXPECT_EQ(select_hosts(kHosts, {"worker-1:0,2", "", -1, -1}), (std::vector<Host>{{"worker-1", {0, 2}}}));
  EXPECT_EQ(select_hosts(kHosts, {"worker-0@worker-1:3", "", -1, -1}),
            (std::vector<Host>{{"worker-0", {0, 1}}, {"worker-1", {3}}}));
  EXPECT_EQ(select_hosts(kHosts, {"", "worker-0", -1, -1}), (std::vector<Host>{kHosts[1]}));
  EXPECT_EQ(select_hosts(kHosts, {"", "worker-1:0,1", -1, -1}),
            (std::vector<Host>{{"worker-0", {0, 1}}, {"worker-1", {2, 3}}}));
  EXPECT_EQ(select_hosts(kHosts, {"", "", 1, -1}), (std::vector<Host>{kHosts[0]}));
  EXPECT_EQ(select_hosts(kHosts, {"", "", 2, 1}), (std::vector<Host>{{"worker-0", {0}}, {"worker-1", {0}}}));
  const auto error = [](const HostFilter& filter) { return error_of([&] { select_hosts(kHosts, filter); }); };
  EXPECT_NE(error({"worker-9", "", -1, -1}).find("Hostname 'worker-9' not found in hostfile"), std::string::npos);
  EXPECT_NE(error({"worker-0:7", "", -1, -1}).find("No slot '7' specified on host 'worker-0'"), std::string::npos);
  EXPECT_NE(error({"worker-0", "worker-1", -1, -1}).find("mutually exclusive"), std::string::npos);
  EXPECT_NE(error({"worker-0", "", 1, -1}).find("Cannot specify num_nodes/gpus with include/exclude"), std::string::npos);
  EXPECT_NE(error({"", "", 3, -1}).find("no extra nodes available via hostfile"), std::string::npos);
  EXPECT_NE(error({"", "worker-0@worker-1", -1, -1}).find("no resources available"), std::string::npos);
}

TEST(Hostfile, QuotesForTheShell) {
  EXPECT_EQ(shell_quoted("plain-1.2/x=y"), "plain-1.2/x=y");
  EXPECT_EQ(shell_quoted("it's $HOME; rm"), "'it'\\''s $HOME; rm'");
  EXPECT_EQ(shell_quoted(""), "''");
}

}  // namespace
}  // namespace convoy
