// `convoy launch`: one machine, two "hosts" that a stand-in for ssh runs here, one process per node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/files.h"
#include "tiny_run.h"

namespace convoy {
namespace {

using testing::BackgroundRun;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Result;
using testing::run_convoy;
using Words = std::vector<std::string>;

bool in_time(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

// Processes of the program whose command lines hold `text`.
int processes_with(const std::string& text) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string line((std::istreambuf_iterator<char>(file)), {});
    if (line.starts_with(CONVOY_PROGRAM) && line.find(text) != std::string::npos) ++count;
  }
  return count;
}

class Launch : public testing::TinyRun {
 protected:
  Launch() {
    std::ofstream(ssh()) << "#!/bin/sh\n"
                            "echo \"$@\" >>"
                         << folder_ / "ssh.log"
                         << "\n"
                            "while [ \"${1#-}\" != \"$1\" ]; do shift 2; done\n"
                            "host=$1; shift\n"
                            "[ \"$host\" = unreachable ] && { echo \"ssh: no route to $host\" >&2; exit 255; }\n"
                            "exec sh -c \"$*\"\n";
    std::filesystem::permissions(ssh(), std::filesystem::perms::owner_all);
    hosts("one slots=1\ntwo slots=1\n");
  }
  std::string ssh() const { return folder_ / "ssh"; }
  std::string ssh_log() const { return read_file(folder_ / "ssh.log"); }
  void hosts(const std::string& text) const { std::ofstream(folder_ / "hostfile") << text; }
  static int port() { return 21000 + static_cast<int>(::getpid() % 8000); }

  Words on_hosts(const Words& more, const Words& settings = {}) const {
    Words all = {"launch",    "--hostfile",    folder_ / "hostfile",   "--ssh",           ssh(), "--master_addr",
                 "127.0.0.1", "--master_port", std::to_string(port()), "--grace-seconds", "1"};
    all.insert(all.end(), more.begin(), more.end());
    all.emplace_back("--");
    for (const std::string& word : words(folder_ / "run", settings)) all.push_back(word);
    return all;
  }
  Words here(const Words& launch, const std::string& output, const Words& settings = {}) const {
    Words all = {"launch"};
    all.insert(all.end(), launch.begin(), launch.end());
    all.emplace_back("--");
    for (const std::string& word : words(output, settings)) all.push_back(word);
    return all;
  }
};

TEST_F(Launch, OneMachineGivesTheModelThatTrainGives) {
  const Result launched =
      run_convoy(here({"--num-processes", "2", "--log_dir", folder_ / "logs"}, folder_ / "launched"));
  ASSERT_EQ(launched.status, 0) << launched.output;
  const Result trained = run_convoy(words(folder_ / "trained", {"--num_processes", "2"}));
  ASSERT_EQ(trained.status, 0) << trained.output;
  EXPECT_EQ(read_file(folder_ / "launched/model.safetensors"), read_file(folder_ / "trained/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "logs/rank-1.log"));
  EXPECT_THAT(read_file(folder_ / "logs/rank-0.log"), HasSubstr("loss"));
}

TEST_F(Launch, TwoHostsGiveTheModelOfTwoRanks) {
  ::setenv("CONVOY_JOB_TOKEN", "nobody-sees-this", 1);
  const Result launched = run_convoy(on_hosts({"--ssh_port", "2222", "--launcher_args", "-l me"}));
  ::unsetenv("CONVOY_JOB_TOKEN");
  ASSERT_EQ(launched.status, 0) << launched.output;
  const Result trained = run_convoy(words(folder_ / "trained", {"--num_processes", "2"}));
  ASSERT_EQ(trained.status, 0) << trained.output;
  EXPECT_EQ(read_file(folder_ / "run/model.safetensors"), read_file(folder_ / "trained/model.safetensors"));
  for (const char* text : {"-o BatchMode=yes -p 2222 -l me one cd ", "-l me two cd ", "'--node_rank' '1'"}) {
    EXPECT_THAT(ssh_log(), HasSubstr(text));
  }
  EXPECT_THAT(ssh_log(), Not(HasSubstr("nobody-sees-this")));
}

TEST_F(Launch, AnErrorOnAnotherHostIsTheMessageAndTheStatus) {
  const Result result = run_convoy(on_hosts({}, {"--train_files", "/nowhere.jsonl"}));
  EXPECT_GT(result.status, 0);
  EXPECT_LT(result.status, 128) << result.output;
  const std::string last = result.output.substr(result.output.rfind("\nconvoy: ") + 1);
  EXPECT_THAT(last, HasSubstr("/nowhere.jsonl"));
  EXPECT_THAT(last, ::testing::ContainsRegex("^convoy: (one|two): rank [01] ended with status"));
}

TEST_F(Launch, AHostThatIsNotReachedEndsTheOthers) {
  hosts("one slots=1\nunreachable slots=1\n");
  const Result result = run_convoy(on_hosts({}, {"--timeout", "60"}));
  EXPECT_EQ(result.status, 255) << result.output;
  EXPECT_THAT(result.output, HasSubstr("convoy: unreachable: ssh: no route to unreachable\n"));
  EXPECT_TRUE(in_time([&] { return processes_with(folder_ / "run") == 0; }));
}

TEST_F(Launch, ASignalSavesOnAllHosts) {
  BackgroundRun run(on_hosts({}, {"--max_steps", "100000"}), folder_ / "log");
  ASSERT_TRUE(in_time([&] { return std::filesystem::exists(folder_ / "run/checkpoint-6"); }))
      << read_file(folder_ / "log");
  run.signal(SIGTERM);
  const Result result = run.wait();
  EXPECT_EQ(result.status, 143) << result.output;
  EXPECT_THAT(result.output, HasSubstr("signal 15: saving a checkpoint"));
  EXPECT_EQ(processes_with(folder_ / "run"), 0);
}

TEST_F(Launch, NobodyOutlivesAKilledLauncher) {
  BackgroundRun run(on_hosts({}, {"--max_steps", "100000", "--save_strategy", "no"}), folder_ / "log");
  ASSERT_TRUE(in_time([&] { return processes_with(folder_ / "run") >= 5; })) << read_file(folder_ / "log");
  run.signal(SIGKILL);
  EXPECT_EQ(run.wait().status, 137);
  EXPECT_TRUE(in_time([&] { return processes_with(folder_ / "run") == 0; }));
}

TEST_F(Launch, OneProcessPerNodeStartsItsRanks) {
  // As Kubeflow does, with a node number and no local rank.
  for (const auto& [name, value] :
       {std::pair{"RANK", "0"}, std::pair{"WORLD_SIZE", "1"}, std::pair{"NPROC_PER_NODE", "2"}}) {
    ::setenv(name, value, 1);
  }
  const Result result = run_convoy(words(folder_ / "node"));
  for (const char* name : {"RANK", "WORLD_SIZE", "NPROC_PER_NODE"}) ::unsetenv(name);
  ASSERT_EQ(result.status, 0) << result.output;
  const Result trained = run_convoy(words(folder_ / "trained", {"--num_processes", "2"}));
  ASSERT_EQ(trained.status, 0) << trained.output;
  EXPECT_EQ(read_file(folder_ / "node/model.safetensors"), read_file(folder_ / "trained/model.safetensors"));
}

TEST_F(Launch, WordsThatCannotBe) {
  const auto refused = [](const Words& all, const std::string& text) {
    const Result result = run_convoy(all);
    EXPECT_EQ(result.status, 2) << result.output;
    EXPECT_THAT(result.output, HasSubstr(text));
  };
  refused({"launch", "--num_processes", "2"}, "nothing to launch");
  refused({"launch", "--num_processes", "2", "--", "plan"}, "'plan' cannot be launched");
  refused({"launch", "--num_procs", "2", "--", "train"}, "num_procs");
  refused({"launch", "--num_nodes", "2", "--", "train"}, "Num nodes is >1 but no extra nodes available via hostfile");
  refused(on_hosts({"--num_processes", "3"}), "--num_processes 3 is no multiple of the 2 hosts");
  refused(on_hosts({"--include", "three"}), "Hostname 'three' not found in hostfile");
  refused({"launch", "--no_ssh", "--num_nodes", "2", "--node_rank", "2", "--", "train"}, "--node_rank 2 of 2 hosts");
  refused({"launch", "--no_ssh", "--num_nodes", "2", "--node_rank", "1", "--", "train"}, "--master_addr");
}

}  // namespace
}  // namespace convoy
