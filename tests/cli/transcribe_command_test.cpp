// convoy transcribe, with a model that was trained for a moment: its output, and recordings that cannot be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "../audio/recordings.h"
#include "base/files.h"
#include "base/json.h"
#include "program.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Result;
using testing::run_convoy;
using testing::TempFolder;

// Two recordings, one said to be "high", one "low".
class Transcribe : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    write("high.wav", recording({.rate = 22050, .seconds = 0.8, .hertz = 900}));
    write("low.flac", recording({.format = SF_FORMAT_FLAC | SF_FORMAT_PCM_16, .seconds = 1.7, .hertz = 150}));
    write("m.jsonl",
          "{\"audio\": \"high.wav\", \"text\": \"high\", \"language\": \"en\", \"id\": \"first\"}\n"
          "{\"audio\": \"low.flac\", \"text\": \"low\", \"language\": \"en\"}\n");
    write("text.txt", "high low\n");
    ASSERT_EQ(run_convoy({"tokenizer", "train", path("text.txt"), "--vocab_size", "264", "--output", path("tok"),
                          "--eos", "<|endoftext|>", "--special_tokens", "<|endoftext|>", "<|startoftranscript|>",
                          "<|en|>", "<|zh|>", "<|transcribe|>", "<|notimestamps|>"})
                  .status,
              0);
    const Result trained = run_convoy(training("model", {"--save_strategy", "no"}));
    ASSERT_EQ(trained.status, 0) << trained.output;
  }
  static std::vector<std::string> training(const std::string& output, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {
        "train",
        "--from_scratch",
        "--model_config",
        R"({"model_type": "whisper", "vocab_size": 264, "d_model": 32, "num_mel_bins": 8, "encoder_layers": 1,
             "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "max_source_positions": 100, "max_target_positions": 32})",
        "--tokenizer",
        path("tok"),
        "--train_files",
        path("m.jsonl"),
        "--seq_length",
        "16",
        "--max_steps",
        "150",
        "--per_device_train_batch_size",
        "2",
        "--learning_rate",
        "1e-2",
        "--output_dir",
        path(output),
        "--threads",
        "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static void TearDownTestSuite() { delete folder_; }
  static std::string path(const std::string& name) { return *folder_ / name; }
  static void write(const std::string& name, const std::string& bytes) {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  static Result transcribe(std::vector<std::string> words) {
    words.insert(words.begin(), {"transcribe", "--model", path("model"), "--threads", "1"});
    return run_convoy(words);
  }
  static TempFolder* folder_;
};
TempFolder* Transcribe::folder_ = nullptr;

TEST_F(Transcribe, WritesTextSubtitlesAndJson) {
  EXPECT_EQ(transcribe({path("high.wav")}).output, "high\n");
  EXPECT_THAT(transcribe({path("low.flac"), "--output", "srt"}).output,
              HasSubstr("1\n00:00:00,000 --> 00:00:01,700\nlow\n"));
  EXPECT_THAT(transcribe({path("low.flac"), "--output", "vtt", "--num_beams", "3"}).output, HasSubstr("WEBVTT\n"));
  const Json json = parse_json(transcribe({path("high.wav"), "--output", "json"}).output, "output");
  EXPECT_EQ(json["text"], "high");
  EXPECT_EQ(json["language"], "en");
  EXPECT_EQ(json["segments"].size(), 1U);
}

TEST_F(Transcribe, SegmentsHaveScoresThatDecideWhatIsDecodedAgain) {
  const auto segment = [&](const std::string& model, std::vector<std::string> more) {
    more.insert(more.begin(),
                {"transcribe", path("high.wav"), "--model", path(model), "--threads", "1", "--output", "json"});
    const Result result = run_convoy(more);
    EXPECT_EQ(result.status, 0) << result.output;
    return parse_json(result.output, "output")["segments"].at(0);
  };
  const Json sure = segment("model", {});
  EXPECT_EQ(sure["text"], "high");
  EXPECT_EQ(sure["temperature"], 0.0);
  EXPECT_LT(sure["avg_logprob"].get<double>(), 0.0);
  EXPECT_GT(sure["avg_logprob"].get<double>(), -1.0);
  EXPECT_DOUBLE_EQ(sure["compression_ratio"].get<double>(), 4.0 / 12);
  EXPECT_TRUE(sure["no_speech_prob"].is_null()) << "the tokenizer has no token for it";
  EXPECT_EQ(segment("model", {"--temperature", "0.3"})["temperature"], 0.3);
  const auto again = [&](const std::string& model, std::vector<std::string> more) {
    more.insert(more.begin(), {"transcribe", path("m.jsonl"), "--model", path(model), "--threads", "1", "--stats"});
    return run_convoy(more).output;
  };
  EXPECT_THAT(again("model", {}), HasSubstr("2 windows, 0 of them decoded again, 0 without speech"));
  const char* const all = "2 windows, 2 of them decoded again, 0 without speech";
  EXPECT_THAT(again("model", {"--logprob_threshold", "0.5"}), HasSubstr(all));
  EXPECT_THAT(again("model", {"--compression_ratio_threshold", "0.1", "--num_beams", "2"}), HasSubstr(all));
  EXPECT_THAT(again("model", {"--logprob_threshold", "0.5", "--temperature", "0"}), HasSubstr(" 0 of them"));
  // What the model's folder says, unless the command line does.
  std::filesystem::copy(path("model"), path("said"), std::filesystem::copy_options::recursive);
  write("said/generation_config.json", R"({"temperature": [0.25, 0.5], "logprob_threshold": 0.5})");
  EXPECT_THAT(again("said", {}), HasSubstr(all));
  EXPECT_THAT(again("said", {"--logprob_threshold", "none"}), HasSubstr(" 0 of them"));
  EXPECT_EQ(segment("said", {"--logprob_threshold", "none"})["temperature"], 0.25);
  EXPECT_EQ(segment("said", {"--temperature", "0"})["temperature"], 0.0);
  write("said/generation_config.json", R"({"logprob_threshold": "low"})");
  EXPECT_THAT(run_convoy({"transcribe", path("high.wav"), "--model", path("said")}).output,
              HasSubstr("logprob_threshold must be a number or null"));
}

// Windows as long as the recordings in training; transcribe knows of it by the model's configuration.
TEST_F(Transcribe, AModelThatMasksPaddingSaysTheSame) {
  const Result trained =
      run_convoy(training("masked", {"--save_strategy", "no", "--mask_audio_padding", "--duration_buckets", "2",
                                     "--batch_seconds", "2", "--validation_files", path("m.jsonl"), "--eval_strategy",
                                     "steps", "--eval_steps", "150", "--predict_with_generate"}));
  ASSERT_EQ(trained.status, 0) << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("2 duration buckets: "));
  EXPECT_THAT(trained.output, HasSubstr("wer 0.00"));
  EXPECT_EQ(run_convoy({"transcribe", "--model", path("masked"), "--threads", "1", path("m.jsonl")}).status, 0);
  for (const auto& [file, text] : {std::pair{"high.wav", "high\n"}, std::pair{"low.flac", "low\n"}})
    EXPECT_EQ(run_convoy({"transcribe", "--model", path("masked"), "--threads", "1", path(file)}).output, text);
}

TEST_F(Transcribe, ManifestsAreCompared) {
  const Result all = transcribe({path("m.jsonl"), "--metrics", path("metrics.json")});
  EXPECT_EQ(all.status, 0);
  EXPECT_THAT(all.output, HasSubstr("first\thigh\n"));
  EXPECT_THAT(all.output, HasSubstr("WER 0.00 % (0 errors in 2 words), CER 0.00 % (0 in 7 characters)"));
  EXPECT_EQ(read_json(path("metrics.json"))["wer"], 0.0);
  EXPECT_EQ(transcribe({path("m.jsonl"), "--output", "srt"}).status, 2) << "subtitles of two need two files";
  EXPECT_EQ(transcribe({path("m.jsonl"), "--output", "srt", "--output_dir", path("subtitles")}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(path("subtitles/first.srt")));
  EXPECT_TRUE(std::filesystem::exists(path("subtitles/low.srt")));
}

TEST_F(Transcribe, BadRecordingsStopTheRunOrAreLeftOut) {
  write("noise.mp3", "this is no recording");
  write("cut.wav", recording({.seconds = 1}).substr(0, 9000));
  write("empty.wav", recording({.seconds = 0}));
  for (const char* bad : {"noise.mp3", "cut.wav", "empty.wav", "absent.wav"}) {
    const Result stopped = transcribe({path(bad), path("high.wav")});
    EXPECT_NE(stopped.status, 0) << bad;
    EXPECT_THAT(stopped.output, HasSubstr(bad));
    if (std::string(bad) == "absent.wav") continue;
    EXPECT_THAT(stopped.output, HasSubstr("--skip_bad")) << bad;
    const Result left_out = transcribe({path(bad), path("high.wav"), "--skip_bad"});
    EXPECT_EQ(left_out.status, 0) << left_out.output;
    EXPECT_THAT(left_out.output, HasSubstr("high\n"));
    EXPECT_THAT(left_out.output, HasSubstr("1 of 2 recordings could not be read"));
  }
}

TEST_F(Transcribe, TheBestModelOfARunIsThatOfTheLeastErrors) {
  std::vector<std::string> words = training("watched", {"--validation_files",
                                                        path("m.jsonl"),
                                                        "--eval_strategy",
                                                        "steps",
                                                        "--eval_steps",
                                                        "50",
                                                        "--save_strategy",
                                                        "steps",
                                                        "--save_steps",
                                                        "50",
                                                        "--predict_with_generate",
                                                        "true",
                                                        "--generation_num_beams",
                                                        "2",
                                                        "--metric_for_best_model",
                                                        "wer",
                                                        "--load_best_model_at_end",
                                                        "true",
                                                        "--num_processes",
                                                        "2",
                                                        "--zero_stage",
                                                        "3"});
  const Result run = run_convoy(words);
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("predictions"));
  EXPECT_THAT(run.output, HasSubstr("what the model writes:  wer "));
  const Json state = read_json(path("watched/trainer_state.json"));
  EXPECT_EQ(state["best_metric"], 0.0);
  std::vector<double> rates;
  for (const Json& record : state["log_history"]) {
    if (record.contains("eval_wer")) rates.push_back(record["eval_wer"].get<double>());
  }
  ASSERT_EQ(rates.size(), 3U);
  EXPECT_EQ(*std::min_element(rates.begin(), rates.end()), 0.0);
  EXPECT_EQ(run_convoy({"transcribe", path("high.wav"), "--model", path("watched"), "--threads", "1"}).output,
            "high\n");
  words[0] = "plan";
  EXPECT_THAT(run_convoy(words).output, HasSubstr("predictions"));
  EXPECT_THAT(run_convoy(training("refused", {"--metric_for_best_model", "wer"})).output,
              HasSubstr("predict_with_generate"));
}

TEST_F(Transcribe, RefusesWhatItCannotDo) {
  EXPECT_THAT(transcribe({path("high.wav"), "--timestamps"}).output, HasSubstr("no tokens for times"));
  EXPECT_THAT(transcribe({path("high.wav"), "--language", "xx"}).output, HasSubstr("<|xx|>"));
  EXPECT_EQ(transcribe({path("high.wav"), "--output", "pdf"}).status, 2);
  for (const auto& [option, value, why] : {std::tuple{"--no_speech_threshold", "0.5", "no token for silence"},
                                           {"--temperature", "0,warm", "numbers such as"},
                                           {"--temperature", "-1", "a temperature of -1"},
                                           {"--temperature", ",", "numbers such as"},
                                           {"--logprob_threshold", "low", "a number or none, not 'low'"},
                                           {"--initial_prompt", "a name", "<|startofprev|>"},
                                           {"--best_of", "0", "best_of"}}) {
    const Result refused = transcribe({path("high.wav"), std::string(option) + "=" + value});
    EXPECT_EQ(refused.status, 2) << option;
    EXPECT_THAT(refused.output, HasSubstr(why));
  }
  EXPECT_THAT(
      run_convoy({"transcribe", path("high.wav"), "--model", std::string(CONVOY_TEST_DATA) + "/gpt2/model"}).output,
      HasSubstr("hears nothing"));
}

}  // namespace
}  // namespace convoy
