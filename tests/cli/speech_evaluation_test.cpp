// Models that hear, evaluated: at the end of a run on its test files, and by convoy evaluate, on any number of ranks.
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

const std::vector<std::string> kSpecials = {
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>",           "<|transcribe|>", "<|notimestamps|>", "<|user|>",
    "<|assistant|>", "<|begin_of_audio|>",    "<|end_of_audio|>", "<|pad|>",        "<|nospeech|>"};

// High and low tones that are named; windows of two seconds (Whisper) and four.
class SpeechEvaluation : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    std::string train, held, test;
    for (int i = 0; i < 30; ++i) {
      const std::string name = "tone" + std::to_string(i) + ".wav";
      const bool high = i % 2 == 0;
      write(name, recording({.seconds = 0.4 + 0.04 * i, .hertz = (high ? 900.0 : 150.0) + 5 * i}));
      std::string& to = i % 3 == 0 ? (i < 9 ? held : test) : train;
      to += "{\"audio\": \"" + name + "\", \"text\": \"" + (high ? "high tone" : "low") + "\"}\n";
    }
    write("train.jsonl", train);
    write("held.jsonl", held);
    write("test.jsonl", test);
    write("text.txt", "high low tone\n");
    std::vector<std::string> words = {"tokenizer", "train",     path("text.txt"), "--vocab_size",  "267",
                                      "--output",  path("tok"), "--eos",          "<|endoftext|>", "--special_tokens"};
    words.insert(words.end(), kSpecials.begin(), kSpecials.end());
    const Result made = run_convoy(words);
    ASSERT_EQ(made.status, 0) << made.output;
  }
  static void TearDownTestSuite() { delete folder_; }
  static std::string path(const std::string& name) { return *folder_ / name; }
  static void write(const std::string& name, const std::string& bytes) {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  static std::string model_config() {
    if (GetParam() == "whisper") {
      return R"({"model_type": "whisper", "vocab_size": 280, "d_model": 32, "num_mel_bins": 8, "encoder_layers": 1,
                 "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 2,
                 "decoder_attention_heads": 2, "max_source_positions": 100, "max_target_positions": 128})";
    }
    return R"({"model_type": "glmasr", "audio_token_id": 265,
               "text_config": {"model_type": "llama", "vocab_size": 280, "hidden_size": 32, "intermediate_size": 48,
                 "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
                 "max_position_embeddings": 256},
               "audio_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
                 "num_attention_heads": 2, "num_mel_bins": 8, "max_position_embeddings": 200}})";
  }
  static std::string length() { return GetParam() == "whisper" ? "32" : "192"; }
  static std::string name(const std::string& run) { return path(GetParam() + "-" + run); }
  // A run with test files. Four rows a step, whatever the number of ranks.
  static Result train(const std::string& output, int ranks, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"train",
                                      "--from_scratch",
                                      "--model_config",
                                      model_config(),
                                      "--tokenizer",
                                      path("tok"),
                                      "--train_files",
                                      path("train.jsonl"),
                                      "--test_files",
                                      path("test.jsonl"),
                                      "--seq_length",
                                      length(),
                                      "--learning_rate",
                                      "1e-2",
                                      "--threads",
                                      "1",
                                      "--num_processes",
                                      std::to_string(ranks),
                                      "--per_device_train_batch_size",
                                      "2",
                                      "--gradient_accumulation_steps",
                                      std::to_string(2 / ranks),
                                      "--save_strategy",
                                      "no",
                                      "--output_dir",
                                      name(output)};
    words.insert(words.end(), more.begin(), more.end());
    return run_convoy(words);
  }
  // The record of the test files.
  static Json tested(const std::string& run) {
    const Json state = read_json(name(run) + "/trainer_state.json");
    Json found = Json::object();
    for (const Json& entry : state["log_history"]) {
      if (entry.contains("test_loss")) found = entry;
    }
    for (const char* of_this_run : {"test_runtime", "test_samples_per_second", "test_steps_per_second"})
      found.erase(of_this_run);
    return found;
  }
  static Json evaluated(const std::string& run, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"evaluate", name(run),      "--eval_files", path("test.jsonl"),
                                      "--output", path("o.json"), "--threads",    "1"};
    words.insert(words.end(), more.begin(), more.end());
    const Result result = run_convoy(words);
    EXPECT_EQ(result.status, 0) << result.output;
    Json json = read_json(path("o.json"));
    for (const char* of_this_run :
         {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "num_processes", "memory_bytes"})
      json.erase(of_this_run);
    return json;
  }
  static TempFolder* folder_;
};
TempFolder* SpeechEvaluation::folder_ = nullptr;

TEST_P(SpeechEvaluation, TestFilesAreHeardAndWrittenDownAtTheEnd) {
  const std::vector<std::string> how = {"--max_steps", "60", "--predict_with_generate", "--generation_max_length",
                                        "12"};
  const Result one = train("one", 1, how);
  ASSERT_EQ(one.status, 0) << one.output;
  EXPECT_THAT(one.output, HasSubstr("test data: "));
  EXPECT_THAT(one.output, HasSubstr("what the model writes:  wer "));
  const Json figures = tested("one");
  for (const char* key : {"test_loss", "test_accuracy", "test_perplexity", "test_wer", "test_cer"})
    ASSERT_TRUE(figures.contains(key)) << key << " " << figures.dump();
  EXPECT_LT(figures["test_wer"].get<double>(), 0.5) << "some tones are told apart";
  // The same as the model's own, evaluated and written down afterwards.
  const Json after = evaluated("one", {"--seq_length", length()});
  EXPECT_EQ(after["eval_samples"], 7);
  EXPECT_NEAR(after["eval_loss"].get<double>(), figures["test_loss"].get<double>(), 1e-5);
  EXPECT_EQ(after["eval_targets"], figures["test_targets"]);
  std::vector<std::string> words = {
      "transcribe", path("test.jsonl"), "--model", name("one"), "--metrics", path("m.json"), "--temperature",
      "0",          "--max_new_tokens", "12",      "--threads", "1"};
  if (GetParam() == "whisper") words.insert(words.end(), {"--language", "none"});
  const Result written = run_convoy(words);
  ASSERT_EQ(written.status, 0) << written.output;
  EXPECT_EQ(read_json(path("m.json"))["wer"], figures["test_wer"]);
  EXPECT_EQ(read_json(path("m.json"))["cer"], figures["test_cer"]);
  for (const char* stage : {"0", "3"}) {
    std::vector<std::string> more = how;
    more.insert(more.end(), {"--zero_stage", stage, "--stage3_param_persistence_threshold", "100"});
    const Result two = train(std::string("two") + stage, 2, more);
    ASSERT_EQ(two.status, 0) << two.output;
    EXPECT_EQ(tested(std::string("two") + stage), figures) << "stage " << stage;
  }
}

TEST_P(SpeechEvaluation, TestFilesOfTheBestModelAndInBuckets) {
  const Result result = train("buckets", 2,
                              {"--max_steps",
                               "12",
                               "--validation_files",
                               path("held.jsonl"),
                               "--eval_strategy",
                               "steps",
                               "--eval_steps",
                               "4",
                               "--save_strategy",
                               "steps",
                               "--save_steps",
                               "4",
                               "--load_best_model_at_end",
                               "--metric_for_best_model",
                               "wer",
                               "--predict_with_generate",
                               "--generation_max_length",
                               "12",
                               "--duration_buckets",
                               "2",
                               "--batch_seconds",
                               "8",
                               "--mask_audio_padding"});
  ASSERT_EQ(result.status, 0) << result.output;
  const Json figures = tested("buckets");
  EXPECT_TRUE(figures.contains("test_wer")) << figures.dump();
  const Json after = evaluated("buckets", {"--seq_length", length()});
  EXPECT_NEAR(after["eval_loss"].get<double>(), figures["test_loss"].get<double>(), 1e-5);
  EXPECT_EQ(after["eval_targets"], figures["test_targets"]);
  // With the run's own settings, as its documentation says.
  const Json again = evaluated("buckets", {name("buckets") + "/resolved.yaml", "--num_processes", "1"});
  EXPECT_NEAR(again["eval_loss"].get<double>(), figures["test_loss"].get<double>(), 1e-5);
  EXPECT_EQ(again["eval_targets"], figures["test_targets"]);
}

TEST_P(SpeechEvaluation, EveryNumberOfRanksSeesTheSame) {
  const Result trained = train("ranks", 1, {"--max_steps", "6"});
  ASSERT_EQ(trained.status, 0) << trained.output;
  for (const std::string dtype : {"f32", "bf16"}) {
    const std::vector<std::string> base = {"--seq_length",
                                           length(),
                                           "--dtype",
                                           dtype,
                                           "--per_device_eval_batch_size",
                                           "2",
                                           "--stage3_param_persistence_threshold",
                                           "100"};
    const Json one = evaluated("ranks", base);
    EXPECT_EQ(one["eval_samples"], 7);
    for (const auto& [ranks, stage] : {std::pair{"2", "0"}, std::pair{"2", "3"}, std::pair{"3", "0"}}) {
      std::vector<std::string> more = base;
      more.insert(more.end(), {"--num_processes", ranks, "--zero_stage", stage});
      EXPECT_EQ(evaluated("ranks", more), one) << dtype << ", " << ranks << " ranks, stage " << stage;
    }
  }
}

TEST_P(SpeechEvaluation, OptionsOfWhisperAreWhispers) {
  const Result trained = train("options", 1, {"--max_steps", "40"});
  ASSERT_EQ(trained.status, 0) << trained.output;
  const auto transcribe = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"transcribe", path("tone0.wav"), "--model", name("options"), "--threads",
                                      "1",          "--output",        "json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_convoy(words);
  };
  const Result silence = transcribe({"--no_speech_threshold", "0", "--logprob_threshold", "1"});
  if (GetParam() == "whisper") {
    ASSERT_EQ(silence.status, 0) << silence.output;
    EXPECT_TRUE(parse_json(silence.output, "output")["segments"].empty());
    const Json heard = parse_json(transcribe({"--logprob_threshold", "none", "--no_speech_threshold", "1"}).output, "");
    const Json& segment = heard["segments"].at(0);
    EXPECT_GE(segment["no_speech_prob"].get<double>(), 0.0);
    EXPECT_LT(segment["no_speech_prob"].get<double>(), 0.5);
    return;
  }
  EXPECT_EQ(silence.status, 2);
  EXPECT_THAT(silence.output, HasSubstr("no token for silence"));
  EXPECT_THAT(transcribe({"--condition_on_prev_tokens"}).output, HasSubstr("no place for what was said before"));
  // Thresholds of the text are any model's, where they are asked for.
  const Json plain = parse_json(transcribe({"--logprob_threshold", "1"}).output, "")["segments"].at(0);
  EXPECT_EQ(plain["temperature"], 0.0);
  EXPECT_TRUE(plain["no_speech_prob"].is_null());
  const Json drawn = parse_json(transcribe({"--temperature", "0.1"}).output, "")["segments"].at(0);
  EXPECT_EQ(drawn["temperature"], 0.1);
}

INSTANTIATE_TEST_SUITE_P(Families, SpeechEvaluation, ::testing::Values("whisper", "glmasr"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace convoy
