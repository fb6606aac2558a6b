// Runs on recordings in duration buckets: equal on any number of ranks, resumed, planned, evaluated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../audio/recordings.h"
#include "base/files.h"
#include "base/json.h"
#include "program.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using testing::Result;
using testing::run_convoy;
using testing::TempFolder;

class Buckets : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    std::string train, held;
    for (int i = 0; i < 40; ++i) {
      const std::string name = "tone" + std::to_string(i) + ".wav";
      const double seconds = 0.3 + 0.08 * i;
      write(name, recording({.seconds = seconds, .hertz = 150.0 + 30 * i}));
      std::string text = i % 2 == 0 ? "low" : "high";
      for (int word = 0; word < i / 8; ++word) text += " high";
      (i % 5 == 4 ? held : train) += "{\"audio\": \"" + name + "\", \"text\": \"" + text + "\"}\n";
    }
    write("train.jsonl", train);
    write("held.jsonl", held);
    write("text.txt", "high low\n");
    ASSERT_EQ(run_convoy({"tokenizer", "train", path("text.txt"), "--vocab_size", "264", "--output", path("tok"),
                          "--eos", "<|endoftext|>", "--special_tokens", "<|endoftext|>", "<|user|>", "<|assistant|>",
                          "<|begin_of_audio|>", "<|end_of_audio|>", "<|pad|>"})
                  .status,
              0);
  }
  static void TearDownTestSuite() { delete folder_; }
  static std::string path(const std::string& name) { return *folder_ / name; }
  static void write(const std::string& name, const std::string& bytes) {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  // What `train` and `plan` are told: a GLM-ASR with windows of four seconds.
  static std::vector<std::string> run(const std::string& command, const std::vector<std::string>& more) {
    std::vector<std::string> words = {command,
                                      "--from_scratch",
                                      "--model_config",
                                      R"({"model_type": "glmasr", "audio_token_id": 261,
             "text_config": {"model_type": "llama", "vocab_size": 264, "hidden_size": 32, "intermediate_size": 48,
               "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
               "max_position_embeddings": 256},
             "audio_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
               "num_attention_heads": 2, "num_mel_bins": 8, "max_position_embeddings": 200}})",
                                      "--tokenizer",
                                      path("tok"),
                                      "--train_files",
                                      path("train.jsonl"),
                                      "--seq_length",
                                      "192",
                                      "--max_steps",
                                      "8",
                                      "--learning_rate",
                                      "3e-3",
                                      "--duration_buckets",
                                      "3",
                                      "--batch_seconds",
                                      "4",
                                      "--mask_audio_padding",
                                      "--threads",
                                      "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static std::vector<std::string> training(int ranks, const std::string& output, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--validation_files", path("held.jsonl"), "--eval_strategy", "steps", "--eval_steps", "4",
                             "--save_steps", "3", "--logging_steps", "1", "--num_processes", std::to_string(ranks),
                             "--gradient_accumulation_steps", std::to_string(4 / ranks), "--output_dir", path(output)});
    return run("train", more);
  }
  static std::string weights(const std::string& output) { return read_file(path(output + "/model.safetensors")); }
  static std::vector<double> figures(const std::string& output, const char* name) {
    std::vector<double> all;
    const Json state = read_json(path(output + "/trainer_state.json"));
    for (const Json& entry : state["log_history"]) {
      if (entry.contains(name)) all.push_back(entry[name]);
    }
    return all;
  }
  static TempFolder* folder_;
};
TempFolder* Buckets::folder_ = nullptr;

TEST_F(Buckets, EveryLayoutGivesTheSameModel) {
  for (const std::string dtype : {"f32", "bf16"}) {
    const Result one = run_convoy(training(1, "one-" + dtype, {"--dtype", dtype}));
    ASSERT_EQ(one.status, 0) << one.output;
    EXPECT_THAT(one.output, HasSubstr("3 duration buckets: "));
    EXPECT_THAT(one.output, HasSubstr("; without buckets "));
    for (const auto& [ranks, stage] : {std::pair{2, "0"}, std::pair{2, "2"}, std::pair{4, "3"}}) {
      const std::string many = dtype + std::to_string(ranks) + stage;
      const Result result = run_convoy(training(ranks, many, {"--dtype", dtype, "--zero_stage", stage}));
      ASSERT_EQ(result.status, 0) << result.output;
      EXPECT_TRUE(weights(many) == weights("one-" + dtype)) << many;
      EXPECT_EQ(figures(many, "loss"), figures("one-" + dtype, "loss")) << many;
      EXPECT_EQ(figures(many, "eval_loss"), figures("one-" + dtype, "eval_loss")) << many;
    }
  }
}

TEST_F(Buckets, ARunGoesOnInTheMiddleOfAnEpoch) {
  const Result whole = run_convoy(training(2, "whole", {"--zero_stage", "1"}));
  ASSERT_EQ(whole.status, 0) << whole.output;
  EXPECT_THAT(whole.output, HasSubstr(" per epoch, up to "));
  const Json state = read_json(path("whole/checkpoint-3/trainer_state.json"));
  EXPECT_NE(state["epoch"], 1.0) << "the checkpoint should lie within an epoch";
  for (const int ranks : {1, 4}) {
    const std::string again = "again" + std::to_string(ranks);
    std::filesystem::create_directories(path(again));
    std::filesystem::copy(path("whole/checkpoint-3"), path(again + "/checkpoint-3"),
                          std::filesystem::copy_options::recursive);
    const Result resumed = run_convoy(training(ranks, again, {"--resume_from_checkpoint", "latest"}));
    ASSERT_EQ(resumed.status, 0) << resumed.output;
    EXPECT_TRUE(weights(again) == weights("whole")) << ranks;
  }
  // The settings that the run has left are a run file of the same run.
  const Result more = run_convoy({"train", path("whole/resolved.yaml"), "--resume_from_checkpoint", "latest",
                                  "--max_steps", "9", "--threads", "1"});
  EXPECT_EQ(more.status, 0) << more.output;
  const Result other = run_convoy(
      training(1, "whole", {"--resume_from_checkpoint", "latest", "--duration_buckets", "2", "--max_steps", "12"}));
  EXPECT_EQ(other.status, 2) << "other buckets are another order of the data";
}

TEST_F(Buckets, ThePlanIsTheRunsAndTheEvaluationTheModels) {
  const Result trained = run_convoy(training(1, "planned"));
  ASSERT_EQ(trained.status, 0) << trained.output;
  const Result plan =
      run_convoy(run("plan", {"--validation_files", path("held.jsonl"), "--gradient_accumulation_steps", "4"}));
  ASSERT_EQ(plan.status, 0) << plan.output;
  EXPECT_THAT(plan.output, HasSubstr("bucket of "));
  const std::size_t total = plan.output.find("  total ");
  ASSERT_NE(total, std::string::npos);
  EXPECT_THAT(trained.output, HasSubstr(plan.output.substr(total, plan.output.find('\n', total) - total)));
  // Without buckets the model hears the same: its configuration says that it masks padding.
  EXPECT_EQ(read_json(path("planned/config.json"))["mask_audio_padding"], true);
  const Result evaluated = run_convoy({"evaluate", path("planned"), "--validation_files", path("held.jsonl"),
                                       "--seq_length", "192", "--output", path("figures.json"), "--threads", "1"});
  ASSERT_EQ(evaluated.status, 0) << evaluated.output;
  const double expected = figures("planned", "eval_loss").back();
  EXPECT_NEAR(read_json(path("figures.json"))["eval_loss"].get<double>(), expected, 1e-5 * expected);
}

// Dropout of adapters in the encoder is keyed by the rows of every shape.
TEST_F(Buckets, AdaptersLearnInBucketsToo) {
  const Result base = run_convoy(training(1, "base", {"--max_steps", "1", "--eval_strategy", "no"}));
  ASSERT_EQ(base.status, 0) << base.output;
  const auto adapt = [&](int ranks, const std::string& output) {
    return run_convoy({"train",
                       "--model",
                       path("base"),
                       "--train_files",
                       path("train.jsonl"),
                       "--seq_length",
                       "192",
                       "--max_steps",
                       "6",
                       "--duration_buckets",
                       "3",
                       "--batch_seconds",
                       "4",
                       "--lora_rank",
                       "4",
                       "--lora_dropout",
                       "0.2",
                       "--target_modules",
                       "all-linear",
                       "--learning_rate",
                       "1e-2",
                       "--logging_steps",
                       "1",
                       "--num_processes",
                       std::to_string(ranks),
                       "--gradient_accumulation_steps",
                       std::to_string(2 / ranks),
                       "--threads",
                       "1",
                       "--output_dir",
                       path(output)});
  };
  for (const int ranks : {1, 2}) {
    const Result result = adapt(ranks, "adapter" + std::to_string(ranks));
    ASSERT_EQ(result.status, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("3 duration buckets: "));
  }
  EXPECT_EQ(figures("adapter2", "loss"), figures("adapter1", "loss"));
}

TEST_F(Buckets, RefusesWhatContradictsIt) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& why) {
    const Result result = run_convoy(training(1, "refused", more));
    EXPECT_EQ(result.status, 2) << result.output;
    EXPECT_THAT(result.output, HasSubstr(why));
  };
  refused({"--train_batch_size", "4"}, "counts rows, which contradicts `batch_seconds`");
  refused({"--batch_seconds", "0.5"}, "batch_seconds 0.5 is less than a row");
  const std::vector<std::string> text = {
      "train",
      "--from_scratch",
      "--model_config",
      R"({"model_type": "gpt2", "vocab_size": 264, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64})",
      "--tokenizer",
      path("tok"),
      "--train_files",
      path("text.txt"),
      "--output_dir",
      path("refused")};
  const auto refused_text = [&](const std::vector<std::string>& more, const std::string& why) {
    std::vector<std::string> words = text;
    words.insert(words.end(), more.begin(), more.end());
    const Result result = run_convoy(words);
    EXPECT_EQ(result.status, 2) << result.output;
    EXPECT_THAT(result.output, HasSubstr(why));
  };
  refused_text({"--duration_buckets", "3"}, "need each other");
  refused_text({"--duration_buckets", "3", "--batch_seconds", "8"}, "duration_buckets is for models that hear");
  refused_text({"--mask_audio_padding"}, "mask_audio_padding is for models that hear");
}

}  // namespace
}  // namespace convoy
