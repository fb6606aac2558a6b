// Evaluation while a run trains: when, what is best, what is kept, what a resumed run remembers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "program.h"
#include "tiny_run.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Result;
using testing::run_convoy;

// The loss falls in these runs; with greater_is_better the first evaluation is the best.
class TrainingEvaluation : public testing::TinyRun {
 protected:
  Result run(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--validation_split", "0.1",         "--lr_scheduler_type",
                                    "constant",           "--log_level", "warning"};
    all.insert(all.end(), more.begin(), more.end());
    const Result result = run_convoy(words(folder_ / name, all));
    EXPECT_EQ(result.status, 0) << result.output;
    return result;
  }
  Json state(const std::string& name) const { return read_json(folder_ / (name + "/trainer_state.json")); }
  static std::map<std::int64_t, double> losses(const Json& state) {
    std::map<std::int64_t, double> all;
    for (const Json& entry : state["log_history"]) {
      if (entry.contains("eval_loss")) all[entry["step"].get<std::int64_t>()] = entry["eval_loss"];
    }
    return all;
  }
  static std::vector<std::int64_t> steps(const Json& state) {
    std::vector<std::int64_t> all;
    for (const auto& [step, loss] : losses(state)) all.push_back(step);
    return all;
  }
  std::string weights(const std::string& of) const { return read_file(folder_ / (of + "/model.safetensors")); }
  std::vector<std::string> checkpoints(const std::string& name) const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / name)) {
      if (entry.path().filename().string().starts_with("checkpoint-")) all.push_back(entry.path().filename());
    }
    std::sort(all.begin(), all.end());
    return all;
  }
};

const std::vector<std::string> kFirstIsBest = {"--eval_strategy",         "steps", "--eval_steps",        "3",
                                               "--metric_for_best_model", "loss",  "--greater_is_better", "true",
                                               "--load_best_model_at_end"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(TrainingEvaluation, TheBestIsKeptAndLoadedAtTheEnd) {
  run("a", with(kFirstIsBest, {"--save_steps", "3", "--save_total_limit", "1", "--eval_on_start"}));
  const Json after = state("a");
  EXPECT_THAT(steps(after), ElementsAre(0, 3, 6, 9, 12));
  EXPECT_GT(losses(after).at(0), losses(after).at(3));
  EXPECT_EQ(after["best_global_step"], 3) << "the evaluation at the start does not count";
  EXPECT_EQ(after["best_metric"], losses(after).at(3));
  EXPECT_EQ(after["best_model_checkpoint"], folder_ / "a/checkpoint-3");
  EXPECT_THAT(checkpoints("a"), ElementsAre("checkpoint-12", "checkpoint-3")) << "the newest and the best";
  EXPECT_TRUE(weights("a") == weights("a/checkpoint-3"));
  // The checkpoint itself says that it is the best, as Hugging Face's does.
  EXPECT_EQ(state("a/checkpoint-3")["best_model_checkpoint"], folder_ / "a/checkpoint-3");
}

TEST_F(TrainingEvaluation, OnlySavedEvaluationsCanBeLoaded) {
  run("a", with(kFirstIsBest, {"--save_steps", "6"}));
  const Json after = state("a");
  EXPECT_EQ(after["best_global_step"], 3);
  EXPECT_EQ(after["best_model_checkpoint"], folder_ / "a/checkpoint-6");
  EXPECT_TRUE(weights("a") == weights("a/checkpoint-6"));
}

TEST_F(TrainingEvaluation, AResumedRunRemembersTheBestAndThePatience) {
  const std::vector<std::string> how =
      with(kFirstIsBest, {"--save_steps", "3", "--max_steps", "60", "--early_stopping_patience", "3"});
  const Result whole = run("whole", how);
  EXPECT_THAT(state("whole")["global_step"], 12) << whole.output;
  for (const char* step : {"/checkpoint-3", "/checkpoint-6"}) {
    std::filesystem::create_directories(folder_ / "again");
    std::filesystem::copy((folder_ / "whole") + step, (folder_ / "again") + step,
                          std::filesystem::copy_options::recursive);
  }
  run("again", with(how, {"--resume_from_checkpoint", "true"}));
  const Json once = state("whole");
  const Json again = state("again");
  EXPECT_EQ(again["global_step"], 12) << "one evaluation without progress was before the checkpoint";
  EXPECT_EQ(again["best_metric"], once["best_metric"]);
  EXPECT_EQ(again["best_global_step"], 3);
  EXPECT_EQ(losses(again), losses(once));
  const Json& stopping = again["stateful_callbacks"]["EarlyStoppingCallback"];
  EXPECT_EQ(stopping["args"]["early_stopping_patience"], 3) << again["stateful_callbacks"].dump();
  EXPECT_EQ(stopping["attributes"]["early_stopping_patience_counter"], 3);
  EXPECT_TRUE(weights("again") == weights("whole"));
  EXPECT_TRUE(weights("again") == weights("again/checkpoint-3"));
  // A run that watches something else starts to look anew.
  std::filesystem::create_directories(folder_ / "other");
  std::filesystem::copy(folder_ / "whole/checkpoint-6", folder_ / "other/checkpoint-6",
                        std::filesystem::copy_options::recursive);
  const Result other =
      run("other", {"--eval_strategy", "steps", "--eval_steps", "3", "--save_steps", "3", "--load_best_model_at_end",
                    "--metric_for_best_model", "perplexity", "--resume_from_checkpoint", "true"});
  EXPECT_THAT(other.output, HasSubstr("the best is looked for anew"));
  const Json last = state("other");
  EXPECT_EQ(last["best_global_step"], 12) << "a perplexity is better when it is lower";
  EXPECT_DOUBLE_EQ(last["best_metric"].get<double>(), std::exp(losses(last).at(12)));
}

TEST_F(TrainingEvaluation, TheDelayCountsEpochsWhereTheStrategyDoes) {
  testing::write_text(folder_ / "few.jsonl", 40);
  const std::vector<std::string> few = {"--train_files", folder_ / "few.jsonl", "--save_strategy", "no"};
  run("epochs",
      with(few, {"--max_steps", "-1", "--num_train_epochs", "3", "--eval_strategy", "epoch", "--eval_delay", "2"}));
  const Json epochs = state("epochs");
  std::vector<double> at;
  for (const Json& entry : epochs["log_history"]) {
    if (entry.contains("eval_loss")) at.push_back(entry["epoch"]);
  }
  EXPECT_THAT(at, ElementsAre(2.0, 3.0));
  run("steps", with(few, {"--eval_strategy", "steps", "--eval_steps", "4", "--eval_delay", "5"}));
  EXPECT_THAT(steps(state("steps")), ElementsAre(8, 12));
}

TEST_F(TrainingEvaluation, OldNamesAndFiguresOfHuggingFace) {
  run("a", {"--evaluation_strategy", "steps", "--eval_steps", "0.5", "--save_strategy", "no",
            "--per_gpu_eval_batch_size", "2", "--eval_accumulation_steps", "4"});
  const Json after = state("a");
  EXPECT_THAT(steps(after), ElementsAre(6, 12));
  for (const Json& entry : after["log_history"]) {
    if (!entry.contains("eval_loss")) continue;
    for (const char* name : {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "eval_accuracy",
                             "eval_perplexity", "epoch", "step"})
      EXPECT_TRUE(entry.contains(name)) << name;
    EXPECT_NEAR(entry["eval_samples_per_second"].get<double>() * entry["eval_runtime"].get<double>(), 40, 1e-6);
  }
}

TEST_F(TrainingEvaluation, EveryNumberOfRanksSeesTheSame) {
  const auto on = [&](const std::string& name, const std::string& ranks, const std::string& accumulation,
                      const std::string& stage) {
    run(name, with(kFirstIsBest, {"--num_processes", ranks, "--gradient_accumulation_steps", accumulation,
                                  "--zero_stage", stage, "--save_steps", "3", "--threads", "1",
                                  "--stage3_param_persistence_threshold", "100", "--per_device_eval_batch_size", "3"}));
    return state(name);
  };
  const Json one = on("one", "1", "2", "0");
  for (const char* stage : {"0", "3"}) {
    const Json two = on(std::string("two-") + stage, "2", "1", stage);
    EXPECT_EQ(losses(two), losses(one)) << "stage " << stage;
    EXPECT_EQ(two["best_metric"], one["best_metric"]);
    EXPECT_EQ(two["best_global_step"], one["best_global_step"]);
    EXPECT_TRUE(weights(std::string("two-") + stage) == weights("one"));
  }
}

}  // namespace
}  // namespace convoy
