// Whole runs on several processes: equal results, resumption on other layouts, launchers.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/files.h"
#include "base/json.h"
#include "checkpoint/checkpoint_store.h"
#include "checkpoint/safetensors.h"
#include "program.h"
#include "ranks_run.h"

namespace convoy {
namespace {

using Ranks = testing::RanksRun;
using ::testing::HasSubstr;
using testing::Result;
using testing::run_convoy;

TEST_F(Ranks, EveryLayoutGivesTheSameModel) {
  for (const std::string dtype : {"f32", "bf16", "f16"}) {
    const std::string one = folder_ / ("one-" + dtype);
    ASSERT_EQ(run_convoy(on(1, one, {"--dtype", dtype})).status, 0);
    for (const auto& [ranks, stage] : {std::pair{2, "0"}, std::pair{2, "3"}, std::pair{4, "1"}, std::pair{4, "2"}}) {
      const std::string many = folder_ / (dtype + "-" + std::to_string(ranks) + "-" + stage);
      const Result run = run_convoy(on(ranks, many, {"--dtype", dtype, "--zero_stage", stage}));
      ASSERT_EQ(run.status, 0) << run.output;
      EXPECT_TRUE(weights(many) == weights(one)) << dtype << " ranks " << ranks << " stage " << stage;
      EXPECT_TRUE(losses(many) == losses(one)) << dtype << " ranks " << ranks << " stage " << stage;
    }
  }
}

TEST_F(Ranks, WithoutDeterminismTheResultIsNear) {
  const std::string one = folder_ / "one";
  ASSERT_EQ(run_convoy(on(1, one)).status, 0);
  for (const char* stage : {"0", "1", "2", "3"}) {
    const std::string two = folder_ / (std::string("two-") + stage);
    const Result run = run_convoy(on(2, two, {"--no-deterministic", "--zero_stage", stage}));
    ASSERT_EQ(run.status, 0) << run.output;
    const std::vector<double> a = losses(one);
    const std::vector<double> b = losses(two);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 * a[i]) << stage << " step " << i;
  }
}

TEST_F(Ranks, ACheckpointResumesOnAnyLayout) {
  for (const std::string dtype : {"f32", "bf16"}) {
    const std::string whole = folder_ / ("whole-" + dtype);
    ASSERT_EQ(run_convoy(on(4, whole, {"--zero_stage", "3", "--dtype", dtype})).status, 0);
    EXPECT_TRUE(std::filesystem::exists(whole + "/checkpoint-6/optimizer-00004-of-00004.safetensors"));
    for (const auto& [ranks, stage] : {std::pair{1, "0"}, std::pair{2, "1"}, std::pair{2, "3"}, std::pair{4, "2"}}) {
      const std::string again = folder_ / (dtype + "-again-" + std::to_string(ranks) + stage);
      std::filesystem::create_directories(again);
      std::filesystem::copy(whole + "/checkpoint-6", again + "/checkpoint-6", std::filesystem::copy_options::recursive);
      const Result resumed =
          run_convoy(on(ranks, again, {"--dtype", dtype, "--zero_stage", stage, "--resume_from_checkpoint", "latest"}));
      ASSERT_EQ(resumed.status, 0) << resumed.output;
      EXPECT_TRUE(weights(again) == weights(whole)) << dtype << " ranks " << ranks << " stage " << stage;
    }
  }
}

TEST_F(Ranks, ExportWritesAPlainFolder) {
  const std::string run = folder_ / "run";
  ASSERT_EQ(run_convoy(on(4, run, {"--zero_stage", "3", "--dtype", "bf16"})).status, 0);
  const Result same = run_convoy({"export", run, "--output", folder_ / "same"});
  ASSERT_EQ(same.status, 0) << same.output;
  EXPECT_TRUE(weights(folder_ / "same") == read_file(run + "/checkpoint-12/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "same/tokenizer.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "same/optimizer-00001-of-00004.safetensors"));
  // From the master weights, in several files: rounding them gives the stored weights.
  const Result wide = run_convoy(
      {"export", run + "/checkpoint-12", "--output", folder_ / "wide", "--dtype", "f32", "--max_shard_size", "0.0002"});
  ASSERT_EQ(wide.status, 0) << wide.output;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "wide/model.safetensors.index.json"));
  const Result back = run_convoy(
      {"generate", folder_ / "wide", "--prompt", "The cat", "--max_new_tokens", "4", "--greedy", "--threads", "1"});
  EXPECT_EQ(back.status, 0) << back.output;
  EXPECT_EQ(run_convoy({"export", run, "--output", run + "/checkpoint-12"}).status, 2);
  EXPECT_EQ(run_convoy({"export", folder_ / "nothing", "--output", folder_ / "out"}).status, 2);
}

TEST_F(Ranks, TheTraceShowsCommunicationBesideComputation) {
  const std::string trace = folder_ / "trace.json";
  const Result run = run_convoy(on(2, folder_ / "run", {"--zero_stage", "2", "--trace", trace, "--seq_length", "64"}));
  ASSERT_EQ(run.status, 0) << run.output;
  bool beside = false;
  for (const std::string& path : {trace, folder_ / "trace.rank1.json"}) {
    struct Span {
      double begin, end;
    };
    std::vector<Span> compute, communication;
    const Json file = read_json(path);
    for (const Json& event : file["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const Span span{event["ts"], event["ts"].get<double>() + event["dur"].get<double>()};
      const std::string name = event["name"];
      if (event["cat"] == "communication") {
        communication.push_back(span);
      } else if (name != "wait" && name != "reduce_scatter") {
        compute.push_back(span);
      }
    }
    EXPECT_FALSE(communication.empty());
    for (const Span& a : communication) {
      for (const Span& b : compute) beside = beside || (a.begin < b.end && b.begin < a.end);
    }
  }
  EXPECT_TRUE(beside);
}

bool has_program(const std::string& name) {
  return std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) == 0;
}

TEST_F(Ranks, MpirunStartsRanks) {
  if (!has_program("mpirun")) GTEST_SKIP() << "no mpirun";
  const std::string one = folder_ / "one";
  ASSERT_EQ(run_convoy(on(1, one)).status, 0);
  std::string line = "mpirun --allow-run-as-root --oversubscribe -n 2 " + std::string(CONVOY_PROGRAM);
  for (const std::string& word : on(2, folder_ / "two", {"--zero_stage", "1"})) line += " '" + word + "'";
  const std::string log = folder_ / "mpi.txt";
  ASSERT_EQ(std::system((line + " >" + log + " 2>&1").c_str()), 0) << read_file(log);
  EXPECT_TRUE(weights(folder_ / "two") == weights(one));
}

TEST_F(Ranks, SrunStartsRanks) {
  if (!has_program("srun") || std::system("timeout 10 srun -n 2 --overcommit true >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "no Slurm that runs two tasks here";
  const std::string one = folder_ / "one";
  ASSERT_EQ(run_convoy(on(1, one)).status, 0);
  std::string line = "srun -n 2 --overcommit " + std::string(CONVOY_PROGRAM);
  for (const std::string& word : on(2, folder_ / "two", {"--zero_stage", "2"})) line += " '" + word + "'";
  const std::string log = folder_ / "srun.txt";
  ASSERT_EQ(std::system((line + " >" + log + " 2>&1").c_str()), 0) << read_file(log);
  EXPECT_TRUE(weights(folder_ / "two") == weights(one));
}

// Two network namespaces joined by a cable, as two hosts; removed with the object.
class TwoHosts {
 public:
  explicit TwoHosts(std::string folder)
      : folder_(std::move(folder)), name_("cv" + std::to_string(::getpid() % 100000)) {
    const std::string a = name_ + "a";
    const std::string b = name_ + "b";
    possible_ = ::geteuid() == 0 && shell("ip netns add " + a + " && ip netns add " + b + " && ip link add " + a +
                                          " netns " + a + " type veth peer name " + b + " netns " + b);
    for (const auto& [host, address] : {std::pair{a, "10.77.0.1/24"}, std::pair{b, "10.77.0.2/24"}}) {
      possible_ = possible_ && shell("ip -n " + host + " addr add " + address + " dev " + host + " && ip -n " + host +
                                     " link set " + host + " up && ip -n " + host + " link set lo up");
    }
  }
  ~TwoHosts() {
    shell("ip netns del " + name_ + "a");
    shell("ip netns del " + name_ + "b");
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;
  bool possible() const { return possible_; }
  void cut() const { shell("ip -n " + name_ + "a link set " + name_ + "a down"); }

  // Starts one rank on each host in the background, as torchrun would; then finish() waits.
  void start(const std::vector<std::string>& words, int port) const {
    for (int rank = 0; rank < 2; ++rank) {
      std::string line = "(timeout -s KILL 60 ip netns exec " + name_ + (rank == 0 ? "a" : "b") +
                         " env RANK=" + std::to_string(rank) +
                         " WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 " +
                         "CONVOY_JOB_TOKEN=secret MASTER_PORT=" + std::to_string(port) + " " + CONVOY_PROGRAM;
      for (const std::string& word : words) line += " '" + word + "'";
      [[maybe_unused]] const int started =
          std::system((line + "; echo $? > " + status_file(rank) + ") >" + output_file(rank) + " 2>&1 &").c_str());
    }
  }
  std::vector<Result> finish() const {
    std::vector<Result> results;
    for (int rank = 0; rank < 2; ++rank) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(70);
      while (!std::filesystem::exists(status_file(rank)) || read_file(status_file(rank)).empty()) {
        if (std::chrono::steady_clock::now() > deadline) return {{-1, "did not end"}, {-1, "did not end"}};
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      results.push_back({std::stoi(read_file(status_file(rank))), read_file(output_file(rank))});
      std::filesystem::remove(status_file(rank));
    }
    return results;
  }

 private:
  static bool shell(const std::string& line) { return std::system(("{ " + line + "; } 2>/dev/null").c_str()) == 0; }
  std::string status_file(int rank) const { return folder_ + "/status" + std::to_string(rank); }
  std::string output_file(int rank) const { return folder_ + "/output" + std::to_string(rank); }
  const std::string folder_, name_;
  bool possible_ = false;
};

TEST_F(Ranks, TwoHostsTrainTogetherAndACutCableIsNoticed) {
  const TwoHosts hosts(folder_.path().string());
  if (!hosts.possible()) GTEST_SKIP() << "no network namespaces for this user";
  const std::string one = folder_ / "one";
  ASSERT_EQ(run_convoy(on(1, one)).status, 0);
  hosts.start(on(2, folder_ / "two", {"--zero_stage", "2"}), 29777);
  for (const Result& result : hosts.finish()) {
    if (result.output.find("no Gloo") != std::string::npos) GTEST_SKIP() << "built without Gloo";
    EXPECT_EQ(result.status, 0) << result.output;
  }
  EXPECT_TRUE(weights(folder_ / "two") == weights(one));
  hosts.start(on(2, folder_ / "cut",
                 {"--max_steps", "100000", "--save_strategy", "no", "--timeout", "3", "--logging_steps", "1000"}),
              29778);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  hosts.cut();
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Result> results = hosts.finish();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  for (int rank = 0; rank < 2; ++rank) {
    const Result& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.status, 138) << result.output;
    EXPECT_THAT(result.output, HasSubstr("rank " + std::to_string(1 - rank))) << "names the peer";
  }
}

TEST_F(Ranks, PlanSaysTheMemoryOfEveryRank) {
  std::vector<std::string> line = on(4, folder_ / "run", {"--zero_stage", "3"});
  line[0] = "plan";
  const Result plan = run_convoy(line);
  ASSERT_EQ(plan.status, 0) << plan.output;
  for (const char* rank : {"rank 0\n", "rank 1\n", "rank 2\n", "rank 3\n"}) EXPECT_THAT(plan.output, HasSubstr(rank));
}

// The run files of examples/deepspeed, which name the users' JSON files as they are.
TEST_F(Ranks, DeepSpeedFilesRunUnchanged) {
  std::filesystem::current_path(CONVOY_SOURCE_DIR);
  const auto example = [&](const std::string& file, const std::vector<std::string>& more = {}) {
    std::vector<std::string> line = {"train",         "examples/deepspeed/" + file,
                                     "--tokenizer",   testing::golden("tokenizers/gpt2"),
                                     "--train_files", data(),
                                     "--max_steps",   "4",
                                     "--threads",     "1",
                                     "--output_dir",  folder_ / file,
                                     "--cache_dir",   folder_ / "cache"};
    line.insert(line.end(), more.begin(), more.end());
    return run_convoy(line);
  };
  const Result asr = example("glm_asr_zero2.yaml");
  EXPECT_EQ(asr.status, 0) << asr.output;
  EXPECT_THAT(asr.output, HasSubstr("background_streaming"));
  EXPECT_THAT(asr.output, HasSubstr("2 ranks, ZeRO stage 2"));
  const Result plain = example("data_parallel.yaml");
  EXPECT_EQ(plain.status, 0) << plain.output;
  EXPECT_THAT(plain.output, HasSubstr("4 ranks, ZeRO stage 0"));
  const Result zero2 = example("glm4_zero2.yaml");
  EXPECT_EQ(zero2.status, 0) << zero2.output;
  EXPECT_THAT(zero2.output, HasSubstr("4 ranks, ZeRO stage 2"));
  const Result zero3 = example("glm4_zero3.yaml");
  EXPECT_EQ(zero3.status, 0) << zero3.output;
  EXPECT_THAT(zero3.output, HasSubstr("4 ranks, ZeRO stage 3"));
  const Result wrong = example("glm4_zero2.yaml", {"--num_processes", "2"});
  EXPECT_EQ(wrong.status, 2) << wrong.output;
  EXPECT_THAT(wrong.output, HasSubstr("Check batch related parameters"));
  EXPECT_THAT(wrong.output, HasSubstr("these values fit 4 ranks"));
}

}  // namespace
}  // namespace convoy
