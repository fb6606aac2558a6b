// The parts of a launch through ssh; whole launches are in tests/cli.
#include "launch/ssh_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "supervised.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class Piped {
 public:
  explicit Piped(const std::string& text) {
    EXPECT_EQ(::pipe(ends_.data()), 0);
    EXPECT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    ::close(ends_[1]);
  }
  ~Piped() { ::close(ends_[0]); }
  Piped(const Piped&) = delete;
  Piped& operator=(const Piped&) = delete;
  int fd() const { return ends_[0]; }

 private:
  std::array<int, 2> ends_{};
};

TEST(NodeSetup, ComesBackAsItWent) {
  const NodeSetup setup{"job", "a token", {{"A", "1\n2\\n"}, {"B", ""}, {"C", "x=y"}}};
  const Piped piped(write_node_setup(setup) + "signal 15\n");
  const NodeSetup read = read_node_setup(piped.fd());
  EXPECT_EQ(read.job, setup.job);
  EXPECT_EQ(read.token, setup.token);
  EXPECT_EQ(read.environment, setup.environment);
  std::array<char, 32> rest{};
  EXPECT_EQ(::read(piped.fd(), rest.data(), rest.size()), 10);
  EXPECT_STREQ(rest.data(), "signal 15\n");
}

TEST(NodeSetup, BadOnesAreErrors) {
  for (const auto& [text, status] :
       {std::pair{"", Status::kPeerLost}, std::pair{"job x\n", Status::kPeerLost},
        std::pair{"what\nstart\n", Status::kUsage}, std::pair{"env nothing\nstart\n", Status::kUsage}}) {
    const Piped piped(text);
    try {
      read_node_setup(piped.fd());
      ADD_FAILURE() << "no error: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), status) << text;
    }
  }
}

TEST(SshLaunch, ShellWords) {
  EXPECT_EQ(shell_quoted("a b"), "'a b'");
  EXPECT_EQ(shell_quoted("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_quoted(""), "''");
}

TEST(SshLaunch, ExportedVariables) {
  std::vector<std::string> texts = {"NCCL_DEBUG=INFO", "HOME=/root", "OMP_NUM_THREADS=2", "SECRET=x", "UCX_TLS=a=b"};
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  EXPECT_THAT(exported_environment(pointers.data()),
              ElementsAre(Pair("NCCL_DEBUG", "INFO"), Pair("OMP_NUM_THREADS", "2"), Pair("UCX_TLS", "a=b")));
}

// In a process of its own: it changes the environment and the folder.
TEST(SshLaunch, EnvironmentFilesOfHomeAndHere) {
  const std::filesystem::path folder = testing::next_folder();
  testing::Supervised run([&] {
    for (const char* name : {"home", "here"}) {
      std::filesystem::create_directories(folder / name);
      std::ofstream(folder / name / "vars") << "A=" << name << "\n" << name << "=1\n";
    }
    ::setenv("HOME", (folder / "home").c_str(), 1);
    ::setenv("DS_ENV_FILE", "vars", 1);
    std::filesystem::current_path(folder / "here");
    const Variables all = environment_files();
    const Variables expected = {{"A", "home"}, {"home", "1"}, {"A", "here"}, {"here", "1"}};
    return all == expected ? 0 : 1;
  });
  EXPECT_EQ(run.wait(), 0);
}

}  // namespace
}  // namespace convoy
