// Whole runs on several processes that something happens to: errors, kills, hangs, damage, ranks that disagree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "base/files.h"
#include "checkpoint/checkpoint_store.h"
#include "program.h"
#include "ranks_run.h"

namespace convoy {
namespace {

using Ranks = testing::RanksRun;
using testing::BackgroundRun;
using ::testing::HasSubstr;
using testing::Result;
using testing::run_convoy;

TEST_F(Ranks, AnErrorOfOneRankIsTheMessageAndTheStatus) {
  const Result run = run_convoy(on(2, folder_ / "run", {"--learning_rate", "1e38", "--max_grad_norm", "0"}));
  EXPECT_EQ(run.status, 7) << run.output;
  EXPECT_THAT(run.output, HasSubstr("ended with status 7"));
  const Result wrong = run_convoy(on(2, folder_ / "run2", {"--elastic", "x"}));
  EXPECT_EQ(wrong.status, 2) << wrong.output;
}

TEST_F(Ranks, AWrongScheduleIsSaidOnceAndWithItsPlace) {
  const std::string file = folder_ / "ds.json";
  std::ofstream(file) << "{\n\"scheduler\": {\"type\": \"WarmupLR\",\n\"params\": {\"warmup_min_rl\": 0}}}";
  const Result run = run_convoy(on(2, folder_ / "run", {"--deepspeed", file}));
  EXPECT_EQ(run.status, 2) << run.output;
  const std::size_t at = run.output.find("did you mean 'warmup_min_lr'?");
  ASSERT_NE(at, std::string::npos) << run.output;
  EXPECT_EQ(run.output.find("did you mean", at + 1), std::string::npos) << run.output;
  EXPECT_THAT(run.output, HasSubstr("ds.json:3"));
}

TEST_F(Ranks, ASignalSavesOnAllRanksAndEnds) {
  BackgroundRun run(on(2, folder_ / "run", {"--max_steps", "100000", "--zero_stage", "2", "--save_strategy", "no"}),
                    folder_ / "log.txt");
  const std::filesystem::path log = folder_ / "log.txt";
  const auto trains = [&] {
    return std::filesystem::exists(log) && read_file(log).find("step 1/") != std::string::npos;
  };
  for (int i = 0; i < 3000 && !trains(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  run.signal(SIGTERM);
  const Result result = run.wait();
  EXPECT_EQ(result.status, 143) << result.output;
  CheckpointStore store(folder_ / "run");
  ASSERT_EQ(store.list().size(), 1u) << result.output;
  EXPECT_TRUE(CheckpointStore::verify(store.list()[0].folder).empty());
}

// The processes of a run (those of one rank, if it is given), by the environment that its supervisor gave them.
std::vector<pid_t> workers_of(const std::string& output_dir, const std::string& rank = "") {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream line(entry.path() / "cmdline", std::ios::binary);
    const std::string words{std::istreambuf_iterator<char>(line), {}};
    std::ifstream environment(entry.path() / "environ", std::ios::binary);
    const std::string variables{std::istreambuf_iterator<char>(environment), {}};
    if (words.find(output_dir) != std::string::npos && variables.find("CONVOY_RANK=" + rank) != std::string::npos)
      found.push_back(std::stoi(name));
  }
  return found;
}

TEST_F(Ranks, KilledRanksAreRestartedAndNothingIsLost) {
  // As many kills as CONVOY_KILLS says (50 takes a minute or two).
  const char* wished = std::getenv("CONVOY_KILLS");
  const int wanted = wished != nullptr ? std::atoi(wished) : 12;
  const std::vector<std::string> settings = {"--max_steps",        std::to_string(60 * wanted),
                                             "--save_steps",       "5",
                                             "--save_total_limit", "3",
                                             "--logging_steps",    "500",
                                             "--zero_stage",       "2",
                                             "--max_restarts",     "1000"};
  const std::string undisturbed = folder_ / "undisturbed";
  ASSERT_EQ(run_convoy(on(2, undisturbed, settings)).status, 0);
  const std::string disturbed = folder_ / "disturbed";
  BackgroundRun run(on(2, disturbed, settings), folder_ / "log.txt");
  std::mt19937 random(4);
  int kills = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (!std::filesystem::exists(disturbed + "/model.safetensors") && kills < wanted &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(240)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 150));
    const std::vector<pid_t> workers = workers_of(disturbed);
    if (!workers.empty() && ::kill(workers[random() % workers.size()], SIGKILL) == 0) ++kills;
  }
  const Result result = run.wait();
  EXPECT_EQ(result.status, 0) << result.output.substr(result.output.size() > 3000 ? result.output.size() - 3000 : 0);
  EXPECT_GE(kills, wanted / 3);
  EXPECT_THAT(result.output, HasSubstr("was killed by signal 9"));
  EXPECT_TRUE(weights(disturbed) == weights(undisturbed)) << "after " << kills << " kills";
  for (const CheckpointInfo& info : CheckpointStore(disturbed).list())
    EXPECT_TRUE(CheckpointStore::verify(info.folder).empty()) << info.folder;
  RecordProperty("kills", kills);
}

TEST_F(Ranks, AHungRankEndsTheRunInTime) {
  BackgroundRun run(on(2, folder_ / "run", {"--max_steps", "100000", "--timeout", "2", "--save_strategy", "no"}),
                    folder_ / "log.txt");
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const std::vector<pid_t> workers = workers_of(folder_ / "run");
  ASSERT_EQ(workers.size(), 2u);
  ::kill(workers[1], SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  const Result result = run.wait();
  EXPECT_EQ(result.status, 138) << result.output;
  EXPECT_THAT(result.output, HasSubstr("made no progress"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  EXPECT_TRUE(workers_of(folder_ / "run").empty());
}

// A run of one step whose files are large enough to be met while they are written.
class LastFiles : public Ranks {
 protected:
  // Stops `rank` as soon as `is_written` holds; what becomes of the run. It may be over too early, so it is tried
  // again.
  Result stopped_while(const std::string& rank, const std::function<bool(const std::string&)>& is_written) const {
    Result result;
    for (int attempt = 0; attempt < 10; ++attempt) {
      const std::string output = folder_ / ("run" + std::to_string(attempt));
      std::vector<std::string> line =
          on(2, output, {"--max_steps", "1", "--save_steps", "1", "--timeout", "2", "--zero_stage", "2"});
      *(std::find(line.begin(), line.end(), "--model_config") + 1) =
          R"({"model_type": "gpt2", "vocab_size": 2200, "n_embd": 512, "n_layer": 2, "n_head": 2, "n_positions": 64})";
      BackgroundRun run(line, folder_ / "log.txt");
      std::vector<pid_t> workers;
      for (int i = 0; i < 5000 && workers.empty(); ++i) workers = workers_of(output, rank);
      if (workers.empty()) continue;
      const pid_t worker = workers[0];
      while (!is_written(output) && ::kill(worker, 0) == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
      ::kill(worker, SIGSTOP);
      // Without the error that is expected the run would never end.
      std::atomic<bool> ended = false;
      std::thread impatience([&] {
        for (int i = 0; i < 200 && !ended; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        if (!ended) ::kill(worker, SIGKILL);
      });
      result = run.wait();
      ended = true;
      impatience.join();
      if (result.status != 0) break;
    }
    return result;
  }
};

TEST_F(LastFiles, ARankThatHangsInTheLastCheckpointIsNamed) {
  const Result result = stopped_while("1", [](const std::string& output) {
    std::error_code none_yet;
    for (const auto& entry : std::filesystem::directory_iterator(output, none_yet)) {
      if (std::filesystem::exists(entry.path() / "optimizer-00002-of-00002.safetensors")) return true;
    }
    return false;
  });
  EXPECT_EQ(result.status, 138) << result.output;
  EXPECT_THAT(result.output, HasSubstr("rank 1 made no progress"));
}

TEST_F(LastFiles, ARankThatHangsInTheLastModelIsNamed) {
  const Result result = stopped_while(
      "0", [](const std::string& output) { return std::filesystem::exists(output + "/model.safetensors.partial"); });
  EXPECT_EQ(result.status, 138) << result.output;
  EXPECT_THAT(result.output, HasSubstr("rank 0 made no progress"));
}

TEST_F(Ranks, WorkersDieWithTheirSupervisor) {
  BackgroundRun run(on(2, folder_ / "run", {"--max_steps", "100000", "--save_strategy", "no"}), folder_ / "log.txt");
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  ASSERT_EQ(workers_of(folder_ / "run").size(), 2u);
  run.signal(SIGKILL);
  run.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_TRUE(workers_of(folder_ / "run").empty());
}

TEST_F(Ranks, TwoRunsDoNotShareAnOutputFolder) {
  const std::string output = folder_ / "run";
  const std::string lock = output + "/.convoy.lock";
  BackgroundRun run(on(2, output, {"--max_steps", "100000", "--save_strategy", "no"}), folder_ / "log.txt");
  for (int i = 0; i < 1000 && (!std::filesystem::exists(lock) || read_file(lock).empty()); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (const int ranks : {1, 2}) {
    const Result second = run_convoy(on(ranks, output, {"--overwrite_output_dir"}));
    EXPECT_EQ(second.status, 2) << second.output;
    EXPECT_THAT(second.output, HasSubstr("another run writes into output_dir: process "));
  }
  run.signal(SIGKILL);
  run.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const Result third = run_convoy(on(2, output));
  EXPECT_EQ(third.status, 0) << third.output;
  EXPECT_FALSE(std::filesystem::exists(lock));
}

TEST_F(Ranks, AnElasticRunGoesOnWithFewerRanks) {
  const std::vector<std::string> settings = {"--max_steps",  "300", "--save_steps",   "5", "--logging_steps", "50",
                                             "--zero_stage", "3",   "--max_restarts", "3", "--elastic",       "1:2"};
  const std::string undisturbed = folder_ / "undisturbed";
  ASSERT_EQ(run_convoy(on(2, undisturbed, settings)).status, 0);
  BackgroundRun run(on(2, folder_ / "run", settings), folder_ / "log.txt");
  while (CheckpointStore(folder_ / "run").list().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::vector<pid_t> workers = workers_of(folder_ / "run");
  ASSERT_EQ(workers.size(), 2u);
  ::kill(workers[1], SIGKILL);
  const Result result = run.wait();
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("starting again"));
  EXPECT_TRUE(weights(folder_ / "run") == weights(undisturbed));
}

TEST_F(Ranks, ADamagedShardIsFoundAndTheCheckpointBeforeUsed) {
  const std::string run = folder_ / "run";
  ASSERT_EQ(run_convoy(on(2, run, {"--zero_stage", "2", "--save_steps", "4"})).status, 0);
  const std::string whole = weights(run);
  {
    std::fstream shard(run + "/checkpoint-12/optimizer-00002-of-00002.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
    shard.seekp(5000);
    shard.put('\x5a');
  }
  std::filesystem::remove(run + "/model.safetensors");
  const Result resumed = run_convoy(on(4, run, {"--zero_stage", "3", "--resume_from_checkpoint", "latest"}));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("cannot be used"));
  EXPECT_THAT(resumed.output, HasSubstr("at step 8"));
  EXPECT_TRUE(weights(run) == whole);
}

// Ranks as a user starts them by hand, one after another.
class ByHand : public testing::RanksRun {
 protected:
  std::vector<Result> run(const std::vector<std::vector<std::string>>& words, const std::string& port) const {
    std::vector<std::unique_ptr<BackgroundRun>> runs;
    for (std::size_t rank = 0; rank < words.size(); ++rank) {
      const std::string number = std::to_string(rank);
      const std::string size = std::to_string(words.size());
      runs.push_back(std::make_unique<BackgroundRun>(
          words[rank], folder_ / ("log" + number),
          std::vector<std::string>{"RANK=" + number, "WORLD_SIZE=" + size, "LOCAL_RANK=" + number,
                                   "LOCAL_WORLD_SIZE=" + size, "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}));
    }
    std::vector<Result> results;
    for (const auto& each : runs) results.push_back(each->wait());
    return results;
  }
};

TEST_F(ByHand, DifferentSettingsAreRefusedByName) {
  const auto differing = [&](const std::vector<std::string>& more) {
    return run({on(2, folder_ / "run"), on(2, folder_ / "run", more)}, "29611");
  };
  for (const auto& [more, text] :
       {std::pair{std::vector<std::string>{"--learning_rate", "1e-3", "--seed", "7"},
                  "rank 1 differs from rank 0 in seed: 7 (rank 0: 42); learning_rate: 0.001 (rank 0: 0.003)"},
        std::pair{std::vector<std::string>{"--resume_from_checkpoint", "true"},
                  "resume_from_checkpoint: given (rank 0: not given)"}}) {
    const std::vector<Result> results = differing(more);
    EXPECT_EQ(results[1].status, 2) << results[1].output;
    EXPECT_THAT(results[1].output, HasSubstr(text));
    EXPECT_NE(results[0].status, 0) << results[0].output;
    EXPECT_THAT(results[0].output, HasSubstr(text)) << "the first rank is told why";
  }
  // What belongs to a process may differ.
  for (const Result& result : differing({"--threads", "2", "--log_level", "debug", "--timeout", "29"}))
    EXPECT_EQ(result.status, 0) << result.output;
}

TEST_F(ByHand, DifferentFilesAreRefusedByName) {
  const std::string other = folder_ / "other.jsonl";
  testing::write_text(other, 390);
  std::vector<std::string> words = on(2, folder_ / "run");
  *(std::find(words.begin(), words.end(), "--train_files") + 1) = other;
  *(std::find(words.begin(), words.end(), "--cache_dir") + 1) = folder_ / "other";
  // The cache of the second rank's files is there, as another run would have left it.
  ASSERT_EQ(run({words, words}, "29612")[1].status, 0);
  const std::vector<Result> results = run({on(2, folder_ / "run2"), words}, "29612");
  EXPECT_EQ(results[1].status, 2) << results[1].output;
  EXPECT_THAT(results[1].output, HasSubstr("rank 1 differs from rank 0 in the training data"));
}

TEST_F(ByHand, AStrayNumberOfProcessesIsSaid) {
  std::vector<std::string> words = on(2, folder_ / "run");
  *(std::find(words.begin(), words.end(), "--num_processes") + 1) = "3";
  const std::vector<Result> results = run({words, words}, "29613");
  EXPECT_EQ(results[0].status, 0) << results[0].output;
  EXPECT_THAT(results[0].output, HasSubstr("num_processes 3 (--num_processes) does not count"));
}

TEST_F(ByHand, ASecondFirstRankIsRefusedAndTheJobGoesOn) {
  const auto start = [&](const std::string& rank, const std::string& output) {
    return std::make_unique<BackgroundRun>(
        on(2, output), folder_ / ("log" + output.substr(output.size() - 1)),
        std::vector<std::string>{"RANK=" + rank, "WORLD_SIZE=2", "LOCAL_RANK=" + rank, "LOCAL_WORLD_SIZE=2",
                                 "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29614"});
  };
  const auto first = start("0", folder_ / "run0");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // it waits for rank 1
  const Result second = start("0", folder_ / "run2")->wait();
  EXPECT_EQ(second.status, 2) << second.output;
  EXPECT_THAT(second.output, HasSubstr("rank 0 of this job is already running"));
  const auto other = start("1", folder_ / "run1");
  const Result result = first->wait();
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(other->wait().status, 0);
}

}  // namespace
}  // namespace convoy
