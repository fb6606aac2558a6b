// convoy evaluate: figures, layouts, memory, texts beside references.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "program.h"
#include "tiny_run.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Result;
using testing::run_convoy;

class Evaluate : public testing::TinyRun {
 protected:
  // A trained model in folder_/run, with an evaluation at its end.
  std::string trained(const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {
        "--validation_split",           "0.2", "--eval_strategy", "steps", "--eval_steps", "12",
        "--per_device_eval_batch_size", "4"};
    all.insert(all.end(), more.begin(), more.end());
    const Result run = run_convoy(words(folder_ / "run", all));
    EXPECT_EQ(run.status, 0) << run.output;
    return folder_ / "run";
  }
  Json evaluated(const std::vector<std::string>& more) {
    std::vector<std::string> all = {"evaluate", "--output", folder_ / "out.json", "--log_level", "warning"};
    all.insert(all.begin() + 1, more.begin(), more.end());
    const Result run = run_convoy(all);
    EXPECT_EQ(run.status, 0) << run.output;
    Json json = read_json(folder_ / "out.json");
    for (const char* of_this_run :
         {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "num_processes", "memory_bytes"}) {
      EXPECT_TRUE(json.contains(of_this_run)) << of_this_run;
      json.erase(of_this_run);
    }
    return json;
  }
  void expect_error(const std::vector<std::string>& more, int status, const std::string& text) {
    std::vector<std::string> all = {"evaluate"};
    all.insert(all.end(), more.begin(), more.end());
    const Result result = run_convoy(all);
    EXPECT_EQ(result.status, status) << result.output;
    EXPECT_THAT(result.output, HasSubstr(text));
  }
};

TEST_F(Evaluate, SaysWhatTrainingSaidOfTheSameWeights) {
  const std::string run = trained();
  const Json state = read_json(run + "/trainer_state.json");
  Json logged;
  for (const Json& entry : state["log_history"]) {
    if (entry.contains("eval_loss")) logged = entry;
  }
  // What the run held out, by its own settings.
  const Json held_out = evaluated({run, run + "/resolved.yaml"});
  EXPECT_EQ(held_out["eval_loss"], logged["eval_loss"]);
  EXPECT_EQ(held_out["eval_accuracy"], logged["eval_accuracy"]);
  EXPECT_EQ(held_out["eval_targets"], logged["eval_targets"]);
  EXPECT_EQ(held_out["eval_samples"], 80);
  // A checkpoint, and a run without a model of its own yet, which has checkpoints.
  EXPECT_EQ(evaluated({run + "/checkpoint-12", run + "/resolved.yaml"})["eval_loss"], logged["eval_loss"]);
  std::filesystem::create_directories(folder_ / "unfinished");
  for (const char* step : {"/checkpoint-6", "/checkpoint-12"}) {
    std::filesystem::copy(run + step, (folder_ / "unfinished") + step, std::filesystem::copy_options::recursive);
  }
  EXPECT_EQ(evaluated({folder_ / "unfinished", run + "/resolved.yaml"})["eval_loss"], logged["eval_loss"]);
  EXPECT_NE(evaluated({run + "/checkpoint-6", run + "/resolved.yaml"})["eval_loss"], logged["eval_loss"]);
}

TEST_F(Evaluate, FiguresBelongTogether) {
  const std::string run = trained();
  const Json json = evaluated({run, "--eval_files", data(), "--seq_length", "64"});
  const double targets = json["eval_targets"], bytes = json["eval_bytes"], loss = json["eval_loss"];
  EXPECT_DOUBLE_EQ(json["eval_perplexity"].get<double>(), std::exp(loss));
  EXPECT_NEAR(json["eval_bits_per_byte"].get<double>(), loss * targets / bytes / std::log(2.0), 1e-9);
  // Each line is read whole, but for its first token.
  std::int64_t all = 0;
  std::ifstream in(data());
  for (std::string line; std::getline(in, line);) all += static_cast<std::int64_t>(line.size()) - 12;
  EXPECT_EQ(json["eval_samples"], 400);
  EXPECT_EQ(json["eval_tokens"].get<std::int64_t>(), json["eval_targets"].get<std::int64_t>() + 400);
  EXPECT_LT(bytes, static_cast<double>(all));
  EXPECT_GT(bytes, 0.7 * static_cast<double>(all));
  // However rows are filled and batches cut, the mean is over the same targets.
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{"--packing", "pad"}, {"--per_device_eval_batch_size", "3"}, {"--dtype", "f32"}}) {
    std::vector<std::string> more = {run, "--eval_files", data(), "--seq_length", "64"};
    more.insert(more.end(), how.begin(), how.end());
    const Json other = evaluated(more);
    EXPECT_NEAR(other["eval_loss"].get<double>(), loss, 2e-6 * loss) << how[0];
    for (const char* count : {"eval_targets", "eval_bytes", "eval_words", "eval_accuracy"})
      EXPECT_EQ(other[count], json[count]) << how[0] << " " << count;
  }
}

TEST_F(Evaluate, TheSameOnEveryNumberOfRanks) {
  const std::string run = trained();
  const std::vector<std::string> base = {run,  "--eval_files", data(), "--per_device_eval_batch_size",
                                         "4",  "--threads",    "1",    "--stage3_param_persistence_threshold",
                                         "100"};
  const Json one = evaluated(base);
  for (const auto& [ranks, stage] : {std::pair{"2", "0"}, std::pair{"2", "3"}, std::pair{"3", "0"}}) {
    std::vector<std::string> more = base;
    more.insert(more.end(), {"--num_processes", ranks, "--zero_stage", stage});
    EXPECT_EQ(evaluated(more), one) << ranks << " ranks, stage " << stage;
  }
}

TEST_F(Evaluate, AnswersAloneOrTheWholeText) {
  const std::string run = trained();
  const std::string file = folder_ / "pairs.jsonl";
  std::ofstream(file) << R"({"prompt": "The cat sees", "completion": " the moon."})"
                      << "\n"
                      << R"({"prompt": "A dog likes", "completion": " the music."})"
                      << "\n";
  const Json answers = evaluated({run, "--eval_files", file});
  const Json all = evaluated({run, "--eval_files", file, "--targets", "all"});
  EXPECT_EQ(answers["eval_bytes"], 10 + 11);
  EXPECT_EQ(answers["eval_words"], 4);
  EXPECT_GT(all["eval_targets"], answers["eval_targets"]);
  EXPECT_EQ(all["eval_tokens"].get<std::int64_t>(), all["eval_targets"].get<std::int64_t>() + 2);
  EXPECT_EQ(all["targets"], "all");
  EXPECT_NE(all["eval_loss"], answers["eval_loss"]);
}

TEST_F(Evaluate, IsPlannedWithoutWhatTrainingNeeds) {
  const std::string run = trained();
  const Result plan = run_convoy({"evaluate", run, "--plan", "--seq_length", "32"});
  EXPECT_EQ(plan.status, 0) << plan.output;
  EXPECT_THAT(plan.output, HasSubstr("the evaluation fits"));
  EXPECT_THAT(plan.output, Not(HasSubstr("gradients")));
  EXPECT_THAT(plan.output, Not(HasSubstr("moments")));
  // How much scratch a product takes depends on the processor: the limit is what one row at a time needs.
  const Result one =
      run_convoy({"evaluate", run, "--eval_files", data(), "--plan", "--per_device_eval_batch_size", "1"});
  ASSERT_EQ(one.status, 0) << one.output;
  const std::size_t at = one.output.find("\n  total");
  ASSERT_NE(at, std::string::npos) << one.output;
  const std::int64_t total = std::stoll(one.output.substr(at + std::string("\n  total").size()));
  const Result refused =
      run_convoy({"evaluate", run, "--eval_files", data(), "--memory_limit", std::to_string(total / 1024 + 1) + "KiB"});
  EXPECT_EQ(refused.status, 4) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("these settings fit:"));
  EXPECT_THAT(refused.output, HasSubstr("--per_device_eval_batch_size 1"));
}

TEST_F(Evaluate, WhatIsMissingOrWrongIsNamed) {
  const std::string run = trained();
  expect_error({}, 2, "no model to evaluate");
  expect_error({run}, 2, "give --eval_files");
  expect_error({run, "--train_files", data()}, 2, "give --eval_files");
  expect_error({run, "--eval_files", folder_ / "nothing.jsonl"}, 2, "no file matches");
  expect_error({run, "--eval_files", data(), "--targets", "some"}, 2, "trained or all");
  expect_error({run, "--eval_files", data(), "--output"}, 2, "`--output` needs a value");
  expect_error({folder_.path().string(), "--eval_files", data()}, 2, "neither a model");
  expect_error({run, "--eval_files", data(), "--normalize", "basic"}, 2, "texts that are compared");
  expect_error({"--predictions", data(), "--seed", "3"}, 2, "'--seed' has no meaning");
  expect_error({"--hypotheses", data()}, 2, "--references");
}

TEST_F(Evaluate, ComparesTextsThatAreThere) {
  std::ofstream(folder_ / "p.jsonl") << R"({"reference": "Hello, world", "hypothesis": "hello word"})"
                                     << "\n"
                                     << R"({"reference": "你好世界今天天气", "hypothesis": "你好世界明天天气好"})"
                                     << "\n";
  const Result run = run_convoy({"evaluate", "--predictions", folder_ / "p.jsonl", "--normalize", "basic", "--output",
                                 folder_ / "rates.json", "--details", folder_ / "details.jsonl"});
  ASSERT_EQ(run.status, 0) << run.output;
  const Json rates = read_json(folder_ / "rates.json");
  EXPECT_EQ(rates["pairs"], 2);
  EXPECT_EQ(rates["characters"]["reference"], 11 + 8);
  EXPECT_DOUBLE_EQ(rates["cer"].get<double>(), 3.0 / 19);
  EXPECT_DOUBLE_EQ(rates["wer"].get<double>(), 2.0 / 3);
  EXPECT_THAT(run.output, HasSubstr("character error rate   15.79%"));
  const std::string details = read_file(folder_ / "details.jsonl");
  const Json second = Json::parse(details.substr(details.find('\n') + 1));
  EXPECT_EQ(second["characters"]["insertions"], 1);
  std::ofstream(folder_ / "h.txt") << "hello word\n";
  std::ofstream(folder_ / "r.txt") << "Hello, world\n";
  const Result lines = run_convoy({"evaluate", "--hypotheses", folder_ / "h.txt", "--references", folder_ / "r.txt"});
  EXPECT_THAT(lines.output, HasSubstr("word error rate        100.00%  (2 of 2"));
}

}  // namespace
}  // namespace convoy
