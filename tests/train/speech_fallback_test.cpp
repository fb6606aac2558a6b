// How a window's text is judged, and the figures that it is judged by, beside those of other programs.
#include "train/speech_fallback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/safetensors.h"
#include "support/test_device.h"
#include "train/generator.h"
#include "train/weights_io.h"

namespace convoy {
namespace {

// Of Python's `len(text.encode()) / len(zlib.compress(text.encode()))`, zlib 1.2.13.
TEST(Fallback, CompressionRatiosAreThoseOfPythonsZlib) {
  const auto times = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  EXPECT_EQ(compression_ratio(""), 0.0);
  EXPECT_DOUBLE_EQ(compression_ratio("a cat sat on the mat"), 0.7692307692307693);
  EXPECT_DOUBLE_EQ(compression_ratio(times("la la la ", 40).substr(0, 359)), 23.933333333333334);
  EXPECT_DOUBLE_EQ(compression_ratio(times("今天下雨。", 30)), 15.0);
}

// The model and recordings of tests/golden/whisper in transformers 5.24 (torch 2.15, f32): eight tokens after
// [3, 10, 11, 12], each the likeliest that was not said yet; the mean by WhisperGenerationMixin._retrieve_avg_logprobs,
// and the probability of token 5 after [3], as WhisperNoSpeechDetection takes it.
TEST(Fallback, LogProbabilitiesAreThoseOfTransformers) {
  const std::filesystem::path folder = std::filesystem::path(CONVOY_TEST_DATA) / "whisper";
  const ModelFolder files(folder / "model");
  const auto model = make_model(files.config(), "test");
  const auto device = testing::test_device();
  Generator generator(*device, *model, {DType::kF32, 24, 2, 1, true, 1});
  load_weights(generator.store(), files);
  const SafetensorsFile io(folder / "io.safetensors");
  const auto found = io.find("input_features");
  ASSERT_EQ(found.spec.shape, Shape({2, 20, 50}));
  std::vector<float> stored(2 * 20 * 50), features(stored.size());
  std::memcpy(stored.data(), found.bytes.data(), found.bytes.size());
  for (std::size_t r = 0; r < 2; ++r) {
    for (std::size_t m = 0; m < 20; ++m) {
      for (std::size_t t = 0; t < 50; ++t) features[r * 1000 + t * 20 + m] = stored[r * 1000 + m * 50 + t];
    }
  }
  const std::int32_t opening[] = {10, 11, 12};
  std::vector<GenerationPrompt> prompts(2);
  for (std::size_t r = 0; r < 2; ++r) {
    prompts[r].ids = {3};
    prompts[r].features = std::span(features).subspan(r * 1000, 1000);
    prompts[r].forced = 3;
  }
  std::vector<double> no_speech(2);
  GenerationOptions options;
  options.max_new_tokens = 8;
  options.sampling.temperature = 0;
  options.score = true;
  options.rule = [&](std::size_t text, std::span<const std::int32_t> made, std::span<float> logits) {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    if (made.empty()) no_speech[text] = std::exp(log_probability(logits, 5));
    for (std::size_t i = 0; i < logits.size() && made.size() < 3; ++i) {
      if (static_cast<std::int32_t>(i) != opening[made.size()]) logits[i] = kNever;
    }
    for (std::size_t i = 3; i < made.size(); ++i) logits[static_cast<std::size_t>(made[i])] = kNever;
  };
  const std::vector<GeneratedText> made = generator.generate_from(prompts, options);
  using Tokens = std::vector<std::int32_t>;
  EXPECT_EQ(made[0].tokens, (Tokens{10, 11, 12, 73, 30, 10, 20, 44, 63, 28, 72}));
  EXPECT_EQ(made[1].tokens, (Tokens{10, 11, 12, 73, 30, 10, 63, 44, 16, 20, 72}));
  EXPECT_NEAR(made[0].log_probability / 8, -3.7947564125061035, 1e-5);
  EXPECT_NEAR(made[1].log_probability / 8, -3.8035805225372314, 1e-5);
  EXPECT_NEAR(no_speech[0], 0.009312542155385017, 1e-7);
  EXPECT_NEAR(no_speech[1], 0.009420650079846382, 1e-7);
}

TEST(Fallback, JudgesAsOpenaiWhisperDoes) {
  const FallbackOptions options = whisper_fallback();
  EXPECT_EQ(options.temperatures, (std::vector<double>{0, 0.2, 0.4, 0.6, 0.8, 1}));
  EXPECT_EQ(judge({-0.5, 1.5, 0.1, 0}, options), Verdict::kTaken);
  EXPECT_EQ(judge({-0.5, 2.5, 0.1, 0}, options), Verdict::kAgain) << "repeats itself";
  EXPECT_EQ(judge({-1.5, 1.5, 0.1, 0}, options), Verdict::kAgain) << "unsure";
  EXPECT_EQ(judge({-1.5, 1.5, 0.7, 0}, options), Verdict::kSilence);
  EXPECT_EQ(judge({-1.5, 2.5, 0.7, 0}, options), Verdict::kSilence);
  EXPECT_EQ(judge({-0.5, 2.5, 0.7, 0}, options), Verdict::kAgain) << "sure of something";
  EXPECT_EQ(judge({-0.5, 1.5, 0.7, 0}, options), Verdict::kTaken);
  EXPECT_EQ(judge({-1.5, 1.5, {}, 0}, options), Verdict::kAgain) << "silence cannot be told";
  EXPECT_EQ(judge({-1.0, 2.4, 0.6, 0}, options), Verdict::kTaken) << "thresholds themselves pass";
  FallbackOptions quiet;
  EXPECT_EQ(judge({-9, 9, 0.9, 0}, quiet), Verdict::kTaken);
  quiet.no_speech_threshold = 0.6;
  EXPECT_EQ(judge({-0.1, 1, 0.9, 0}, quiet), Verdict::kSilence) << "without a threshold of the text it decides alone";
}

TEST(Fallback, TheLesserEvilOfTextsThatFailed) {
  const FallbackOptions options = whisper_fallback();
  EXPECT_TRUE(better({-1.2, 1.5, {}, 0}, {-1.4, 1.0, {}, 0.2}, options)) << "the likelier one";
  EXPECT_FALSE(better({-1.4, 1.0, {}, 0.2}, {-1.2, 1.5, {}, 0}, options));
  EXPECT_TRUE(better({-3.0, 1.5, {}, 1}, {-0.1, 9.0, {}, 0}, options)) << "rather than one that repeats itself";
  EXPECT_TRUE(better({-0.1, 9.0, {}, 0}, {-0.2, 9.5, {}, 0.2}, options));
}

TEST(Fallback, AModelsFileSaysOtherValues) {
  const auto read = [](const Json& json) {
    FallbackOptions options = whisper_fallback();
    read_fallback(json, "generation_config.json", options);
    return options;
  };
  const FallbackOptions said = read({{"temperature", {0, 0.5}},
                                     {"compression_ratio_threshold", 1.35},
                                     {"logprob_threshold", nullptr},
                                     {"no_speech_threshold", 0.3}});
  EXPECT_EQ(said.temperatures, (std::vector<double>{0, 0.5}));
  EXPECT_EQ(said.compression_ratio_threshold, 1.35);
  EXPECT_FALSE(said.logprob_threshold);
  EXPECT_EQ(said.no_speech_threshold, 0.3);
  EXPECT_EQ(read(Json::object()).temperatures.size(), 6U);
  EXPECT_EQ(read({{"temperature", 1.0}}).temperatures.size(), 6U) << "what every file has";
  EXPECT_EQ(read({{"temperature", 0.3}, {"do_sample", true}}).temperatures, std::vector<double>{0.3});
  EXPECT_THROW(read({{"temperature", {0, "high"}}}), Error);
  EXPECT_THROW(read({{"temperature", Json::array()}}), Error);
  EXPECT_THROW(read({{"logprob_threshold", "low"}}), Error);
}

}  // namespace
}  // namespace convoy
