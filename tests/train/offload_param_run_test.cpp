// Whole runs whose weights lie in host memory: a run for a GPU, on a device that is the CPU, whose host copies are
// done or awaited as a GPU's are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/checkpoint_store.h"
#include "support/late_device.h"
#include "support/ranks.h"
#include "train/run.h"
#include "train/run_evaluation.h"
#include "train/run_plan.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_healthy_ranks;
using testing::run_ranks;
using Words = std::vector<std::string>;

class OffloadParamRun : public ::testing::Test {
 protected:
  OffloadParamRun() {
    std::string pattern = (std::filesystem::temp_directory_path() / "convoy-offload-XXXXXX").string();
    check(::mkdtemp(pattern.data()) != nullptr, "cannot make a temporary folder");
    folder_ = pattern;
    const char* subjects[] = {"The cat", "A dog", "My friend", "The old man", "Nobody", "The river"};
    const char* objects[] = {"the moon.", "a red house.", "the music.", "an open door.", "the long road."};
    std::mt19937 random(3);
    std::ofstream out(folder_ / "data.jsonl");
    for (int i = 0; i < 300; ++i)
      out << R"({"text": ")" << subjects[random() % 6] << " sees " << objects[random() % 5] << "\"}\n";
  }
  ~OffloadParamRun() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  // A tiny GPT-2 with dropout and tied tables. The global batch has eight rows on any number of ranks.
  RunConfig config(const std::string& name, int ranks, const Words& more) const {
    const bool fresh = std::find(more.begin(), more.end(), "--model") == more.end();
    Words all = {"--tokenizer",
                 std::string(CONVOY_TEST_DATA) + "/tokenizers/gpt2",
                 "--train_files",
                 folder_ / "data.jsonl",
                 "--validation_split",
                 "0.1",
                 "--seq_length",
                 "32",
                 "--per_device_train_batch_size",
                 "2",
                 "--gradient_accumulation_steps",
                 std::to_string(4 / ranks),
                 "--max_steps",
                 "6",
                 "--learning_rate",
                 "3e-3",
                 "--lr_scheduler_type",
                 "constant",
                 "--logging_steps",
                 "1",
                 "--eval_strategy",
                 "steps",
                 "--eval_steps",
                 "3",
                 "--save_steps",
                 "3",
                 "--output_dir",
                 folder_ / name,
                 "--cache_dir",
                 folder_ / "cache",
                 "--threads",
                 "1",
                 "--disable_tqdm",
                 "--log_level",
                 "error",
                 "--device",
                 "cuda"};
    if (fresh) {
      const Words scratch = {
          "--from_scratch", "--model_config",
          R"({"model_type": "gpt2", "vocab_size": 2200, "n_embd": 32, "n_layer": 4, "n_head": 2, "n_positions": 64})"};
      all.insert(all.end(), scratch.begin(), scratch.end());
    }
    all.insert(all.end(), more.begin(), more.end());
    return parse_run_config(all);
  }

  void train(const std::string& name, const Words& more, int ranks = 1) const {
    const auto status = run_healthy_ranks(ranks, [&](Communicator& communicator) {
      testing::LateDevice device;
      return std::to_string(run_training(config(name, ranks, more), device, "test", communicator));
    });
    for (const std::string& each : status) ASSERT_EQ(each, "0") << name;
  }

  std::string weights(const std::string& name) const { return read_file(folder_ / name / "model.safetensors"); }
  // Losses of training and evaluation, by step.
  std::vector<std::pair<std::int64_t, double>> losses(const std::string& name) const {
    std::vector<std::pair<std::int64_t, double>> all;
    const Json state = read_json(folder_ / name / "trainer_state.json");
    for (const Json& entry : state["log_history"]) {
      for (const char* key : {"loss", "eval_loss"}) {
        if (entry.contains(key)) all.emplace_back(entry["step"].get<std::int64_t>(), entry[key].get<double>());
      }
    }
    return all;
  }

  std::filesystem::path folder_;
};

const Words kOffload = {"--offload_param", "cpu"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(OffloadParamRun, LeavesTheFilesOfOneThatKeepsThem) {
  for (const Words& how : {Words{}, Words{"--bf16", "--recompute", "full", "--offload_activations", "cpu",
                                          "--offload_optimizer", "cpu"}}) {
    const std::string kind = how.empty() ? "f32" : "bf16";
    train(kind + "-kept", how);
    EXPECT_EQ(losses(kind + "-kept").size(), 8u) << "six steps and two evaluations";
    for (const int ranks : {1, 2, 4}) {
      const std::string name = kind + "-away-" + std::to_string(ranks);
      train(name, with(with(how, kOffload), {"--zero_stage", "3"}), ranks);
      EXPECT_TRUE(weights(name) == weights(kind + "-kept")) << name;
      EXPECT_EQ(losses(name), losses(kind + "-kept")) << name;
    }
  }
}

// A checkpoint knows nothing of where weights lie.
TEST_F(OffloadParamRun, KilledItResumesWithAndWithoutAndOnOtherRanks) {
  const Words how = {"--bf16", "--eval_strategy", "no"};
  const std::vector<testing::RankResult> killed = run_ranks(1, [&](Communicator& communicator) {
    std::thread killer([&] {
      while (!std::filesystem::exists(folder_ / "killed/checkpoint-6"))
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ::kill(::getpid(), SIGKILL);
    });
    testing::LateDevice device;
    run_training(config("killed", 1, with(with(how, kOffload), {"--max_steps", "1000000"})), device, "test",
                 communicator);
    killer.join();
    return std::string("was not killed");
  });
  ASSERT_EQ(killed[0].signal, SIGKILL) << killed[0].failure << killed[0].value;
  CheckpointStore store(folder_ / "killed");
  const auto newest = store.newest_whole();
  ASSERT_TRUE(newest);
  const Words steps = {"--max_steps", std::to_string(newest->step + 4)};
  train("whole", with(how, steps));
  int resumed = 0;
  for (const auto& [ranks, offload] :
       {std::pair{1, true}, std::pair{1, false}, std::pair{2, true}, std::pair{4, true}}) {
    const std::string name = "resumed-" + std::to_string(resumed++);
    std::filesystem::create_directories(folder_ / name);
    std::filesystem::copy(newest->folder, folder_ / name / newest->folder.filename(),
                          std::filesystem::copy_options::recursive);
    Words all = with(with(how, steps), {"--resume_from_checkpoint", "true", "--zero_stage", "3"});
    train(name, offload ? with(all, kOffload) : all, ranks);
    EXPECT_TRUE(weights(name) == weights("whole")) << ranks << " ranks, " << (offload ? "offloaded" : "kept");
  }
}

// The frozen weights of a base model are read and never written: what is left on the device is little.
TEST_F(OffloadParamRun, TrainsTheSameAdapters) {
  train("base", {});
  const Words lora = {"--model", folder_ / "base", "--lora_rank", "4", "--bf16"};
  train("kept", lora);
  train("away", with(lora, kOffload));
  train("away-2", with(with(lora, kOffload), {"--zero_stage", "3"}), 2);
  const auto adapter = [&](const std::string& name) { return read_file(folder_ / name / "adapter_model.safetensors"); };
  EXPECT_TRUE(adapter("away") == adapter("kept"));
  EXPECT_TRUE(adapter("away-2") == adapter("kept"));
}

TEST_F(OffloadParamRun, EvaluationAloneGivesTheSameNumbers) {
  train("base", {});
  const auto evaluate = [&](const std::string& name, const Words& more, int ranks) {
    const auto status = run_healthy_ranks(ranks, [&](Communicator& communicator) {
      testing::LateDevice device;
      EvaluateOptions options;
      options.output = folder_ / name;
      return std::to_string(run_evaluation(config("evaluated", ranks, with({"--model", folder_ / "base"}, more)),
                                           options, device, "test", communicator));
    });
    for (const std::string& each : status) EXPECT_EQ(each, "0") << name;
    return read_json(folder_ / name)["eval_loss"].get<double>();
  };
  const double kept = evaluate("kept.json", {}, 1);
  EXPECT_EQ(evaluate("away.json", kOffload, 1), kept);
  EXPECT_EQ(evaluate("shards.json", with(kOffload, {"--zero_stage", "3"}), 2), kept);
  EXPECT_EQ(evaluate("whole.json", kOffload, 2), kept) << "nothing is updated: whole weights on each rank will do";
}

TEST_F(OffloadParamRun, ThePlanSaysWhatItSaves) {
  CpuDevice device;
  const Words scratch = {"--save_strategy", "no"};
  const std::string kept = plan_run(config("run", 1, scratch), device);
  EXPECT_THAT(kept, HasSubstr("--offload_param cpu"));
  EXPECT_THAT(kept, Not(HasSubstr("offloaded weights")));
  const std::string away = plan_run(config("run", 1, with(scratch, kOffload)), device);
  EXPECT_THAT(away, HasSubstr("offloaded weights: save"));
  EXPECT_THAT(away, HasSubstr(" GB to the device per micro-batch"));
  EXPECT_THAT(away, Not(HasSubstr("--offload_param cpu")));
  const auto weights_line = [](const std::string& plan) {
    const std::size_t begin = plan.find("  weights");
    return plan.substr(begin, plan.find('\n', begin) - begin);
  };
  EXPECT_THAT(weights_line(away), HasSubstr("of the host's"));
  EXPECT_THAT(weights_line(kept), Not(HasSubstr("of the host's")));
  EXPECT_THAT(
      plan_run(config("run", 4, with(with(scratch, kOffload), {"--zero_stage", "3", "--num_processes", "4"})), device),
      HasSubstr("rank 3"));
}

TEST_F(OffloadParamRun, SeveralRanksNeedStage3) {
  CpuDevice device;
  for (const std::string stage : {"0", "1", "2"}) {
    try {
      plan_run(config("run", 2, with(kOffload, {"--zero_stage", stage, "--num_processes", "2"})), device);
      ADD_FAILURE() << "accepted with stage " << stage;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("with zero_stage " + stage + " they are not sharded"));
      EXPECT_THAT(error.what(), HasSubstr("[--offload_param]"));
      EXPECT_THAT(error.remedy(), HasSubstr("use zero_stage: 3"));
    }
  }
}

}  // namespace
}  // namespace convoy
