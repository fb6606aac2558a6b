// Generation after hearing: with kept keys and values, several recordings and beams, against everything computed anew.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "support/test_device.h"
#include "train/beam_search.h"
#include "train/generator.h"
#include "train/tiny_model.h"

namespace convoy {
namespace {

using testing::kAudioFrames;
using testing::kMelBins;
using testing::sharpen;
using testing::tiny_config;
using Tokens = Generator::Tokens;

struct Heard {
  std::vector<std::vector<float>> features;
  std::vector<GenerationPrompt> prompts;
};

// Recordings of 1 or `most` windows, with a prompt each that has a place for every row of audio.
Heard recordings(const Model& model, std::size_t count, std::int64_t most) {
  const AudioInput input = model.audio().value();
  Heard made;
  RandomStream random(5, 1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t windows = 1 + static_cast<std::int64_t>(i) % most;
    std::vector<float> features(static_cast<std::size_t>(windows * kAudioFrames * kMelBins));
    for (float& value : features) value = 2 * static_cast<float>(random.uniform()) - 1;
    made.features.push_back(std::move(features));
    GenerationPrompt prompt;
    const auto word = [&] { prompt.ids.push_back(static_cast<std::int32_t>(1 + random.below(90))); };
    word();
    if (input.audio_token >= 0) {
      const std::int64_t places = windows * input.frames / input.frames_per_token - (i % 2 == 0 ? 1 : 0);
      prompt.ids.insert(prompt.ids.end(), static_cast<std::size_t>(places),
                        static_cast<std::int32_t>(input.audio_token));
    }
    for (std::size_t w = 0; w < i % 3; ++w) word();
    made.prompts.push_back(std::move(prompt));
  }
  for (std::size_t i = 0; i < count; ++i) made.prompts[i].features = made.features[i];
  return made;
}

// Else a tied table has each token call for itself.
void say_nothing_twice(std::size_t, std::span<const std::int32_t> made, std::span<float> logits) {
  for (std::int32_t token : made) logits[static_cast<std::size_t>(token)] = -std::numeric_limits<float>::infinity();
}

class Hearing : public ::testing::TestWithParam<std::string> {
 protected:
  std::vector<Tokens> run(const Model& model, GeneratorRoom room, const Heard& heard, GenerationOptions options = {}) {
    room.max_length = 40;
    Generator generator(*device_, model, room);
    EXPECT_EQ(generator.has_cache(), room.cache);
    sharpen(generator.store());
    options.max_new_tokens = 12;
    options.stop_tokens = {5, 6, 7};
    options.sampling.temperature = 0;
    if (!options.rule) options.rule = say_nothing_twice;
    const auto first = generator.generate_from(heard.prompts, options);
    EXPECT_EQ(generator.generate_from(heard.prompts, options), first) << "what an earlier text left behind counts";
    std::vector<Tokens> made;
    for (const GeneratedText& text : first) made.push_back(text.tokens);
    return made;
  }
  const std::unique_ptr<Device> device_ = testing::test_device();
};

TEST_P(Hearing, TextsWithCacheEqualThoseWithout) {
  const auto model = make_model(tiny_config(GetParam()), "test");
  const std::int64_t most = GetParam() == "glmasr" ? 3 : 1;
  const Heard heard = recordings(*model, 7, most);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const std::int64_t beams : {1, 3}) {
      const auto expected = run(*model, {dtype, 0, 1, beams, false, most}, heard);
      EXPECT_EQ(run(*model, {dtype, 0, 1, beams, true, most}, heard), expected) << beams << " beams";
      EXPECT_EQ(run(*model, {dtype, 0, 3, beams, true, most}, heard), expected) << beams << " beams, 3 at once";
    }
  }
}

TEST_P(Hearing, TheRecordingDecidesTheText) {
  const auto model = make_model(tiny_config(GetParam()), "test");
  Heard heard = recordings(*model, 2, 1);
  heard.prompts[1].ids = heard.prompts[0].ids;
  const auto made = run(*model, {DType::kF32, 0, 2, 1, true, 1}, heard);
  EXPECT_NE(made[0], made[1]);
  heard.prompts[1].features = heard.prompts[0].features;
  const auto same = run(*model, {DType::kF32, 0, 2, 1, true, 1}, heard);
  EXPECT_EQ(same[0], same[1]);
}

// With masked padding, what stands behind the sound is not heard: neither in the encoder nor in the text.
TEST_P(Hearing, MaskedPaddingDecidesNothing) {
  for (const bool masked : {true, false}) {
    Json config = tiny_config(GetParam());
    config[kMaskAudioPadding] = masked;
    const auto model = make_model(config, "test");
    Heard quiet = recordings(*model, 3, 1);
    const AudioInput input = model->audio().value();
    const std::int64_t sound = input.frames / 2;
    for (GenerationPrompt& prompt : quiet.prompts) {
      prompt.sound = sound;
      if (input.audio_token < 0) continue;
      std::erase(prompt.ids, static_cast<std::int32_t>(input.audio_token));
      prompt.ids.push_back(static_cast<std::int32_t>(input.audio_token));
    }
    Heard loud = quiet;
    for (std::size_t i = 0; i < loud.features.size(); ++i) {
      for (std::size_t at = static_cast<std::size_t>((sound + 2) * kMelBins); at < loud.features[i].size(); ++at)
        loud.features[i][at] = at % 3 == 0 ? 9.0f : -9.0f;
      loud.prompts[i].features = loud.features[i];
      quiet.prompts[i].features = quiet.features[i];
    }
    for (const bool cache : {true, false}) {
      const std::int64_t batch = cache ? 2 : 1;
      const auto expected = run(*model, {DType::kF32, 0, batch, 1, cache, 1}, quiet);
      EXPECT_EQ(run(*model, {DType::kF32, 0, batch, 1, cache, 1}, loud) == expected, masked) << "cache " << cache;
    }
  }
}

TEST_P(Hearing, RulesHoldForGreedyTextsAndBeams) {
  const auto model = make_model(tiny_config(GetParam()), "test");
  const Heard heard = recordings(*model, 4, 1);
  GenerationOptions options;
  options.rule = [](std::size_t, std::span<const std::int32_t> made, std::span<float> logits) {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (i % 2 != made.size() % 2) logits[i] = -std::numeric_limits<float>::infinity();
    }
  };
  for (const std::int64_t beams : {1, 4}) {
    for (const Tokens& text : run(*model, {DType::kF32, 0, 2, beams, true, 1}, heard, options)) {
      for (std::size_t i = 0; i < text.size(); ++i) EXPECT_EQ(static_cast<std::size_t>(text[i]) % 2, i % 2);
    }
  }
}

// What a search adds up is what the same tokens have when they are forced one by one.
TEST_P(Hearing, LogProbabilitiesAreThoseOfTheTokensOfTheText) {
  const auto model = make_model(tiny_config(GetParam()), "test");
  const Heard heard = recordings(*model, 3, 1);
  for (const std::int64_t beams : {1, 3}) {
    Generator generator(*device_, *model, {DType::kF32, 40, 2, beams, true, 1});
    sharpen(generator.store());
    GenerationOptions options;
    options.max_new_tokens = 10;
    options.stop_tokens = {5, 6, 7};
    options.sampling.temperature = 0;
    options.rule = say_nothing_twice;
    options.score = true;
    const std::vector<GeneratedText> made = generator.generate_from(heard.prompts, options);
    std::vector<double> sums(made.size(), 0.0);
    options.search = false;
    options.rule = [&](std::size_t text, std::span<const std::int32_t> before, std::span<float> logits) {
      say_nothing_twice(text, before, logits);
      const std::int32_t token = made[text].tokens.at(before.size());
      sums[text] += log_probability(logits, token);
      for (std::size_t i = 0; i < logits.size(); ++i) {
        if (static_cast<std::int32_t>(i) != token) logits[i] = -std::numeric_limits<float>::infinity();
      }
    };
    const std::vector<GeneratedText> forced = generator.generate_from(heard.prompts, options);
    for (std::size_t i = 0; i < made.size(); ++i) {
      EXPECT_EQ(forced[i].tokens, made[i].tokens);
      EXPECT_EQ(forced[i].log_probability, 0.0) << "a forced token is certain";
      EXPECT_LT(made[i].log_probability, -0.01);
      EXPECT_NEAR(sums[i], made[i].log_probability, 1e-3) << beams << " beams";
    }
  }
}

TEST_P(Hearing, ForcedTokensCountForNoLength) {
  const auto model = make_model(tiny_config(GetParam()), "test");
  Heard heard = recordings(*model, 2, 1);
  heard.prompts[1].ids = heard.prompts[0].ids;
  heard.prompts[1].features = heard.prompts[0].features;
  heard.prompts[1].forced = 2;
  for (const std::int64_t beams : {1, 3}) {
    Generator generator(*device_, *model, {DType::kF32, 40, 2, beams, true, 1});
    sharpen(generator.store());
    GenerationOptions options;
    options.max_new_tokens = 6;
    options.sampling.temperature = 0;
    options.rule = say_nothing_twice;
    const std::vector<GeneratedText> made = generator.generate_from(heard.prompts, options);
    EXPECT_EQ(made[0].tokens.size(), 6U);
    EXPECT_EQ(made[1].tokens.size(), 8U);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Hearing, ::testing::Values("whisper", "glmasr"),
                         [](const auto& test) { return test.param; });

std::vector<float> log_probabilities(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities)
    logits.push_back(p > 0 ? static_cast<float>(std::log(p)) : -std::numeric_limits<float>::infinity());
  return logits;
}

// Token 0 ends; what the others lead to depends on the token alone.
Tokens search(const std::vector<std::vector<double>>& next, BeamOptions options, std::size_t start = 0) {
  options.stop_tokens = {0};
  BeamSearch search(options);
  while (true) {
    std::vector<std::vector<float>> logits;
    for (std::size_t b = 0; b < search.size(); ++b) {
      const Tokens& made = search.made(b);
      logits.push_back(log_probabilities(next[made.empty() ? start : static_cast<std::size_t>(made.back())]));
    }
    if (search.advance(logits).empty()) return search.best();
  }
}

// 1 looks better at first, yet what follows 2 is certain.
const std::vector<std::vector<double>> kTrap = {{0, 0.6, 0.4, 0}, {0.3, 0.25, 0.25, 0.2}, {0, 0, 0, 1}, {1, 0, 0, 0}};

TEST(BeamSearch, FindsWhatGreedySearchMisses) {
  EXPECT_EQ(search(kTrap, {1, 0.0, {}, 10}), (Tokens{1, 0}));
  EXPECT_EQ(search(kTrap, {2, 0.0, {}, 10}), (Tokens{2, 3, 0}));
}

TEST(BeamSearch, TheLengthPenaltyChoosesAmongThoseThatEnded) {
  // Ends at once with probability 0.5, or after one more token with 0.3.
  const std::vector<std::vector<double>> next = {{0.5, 0.3, 0.2}, {1, 0, 0}, {1, 0, 0}};
  EXPECT_EQ(search(next, {3, 0.0, {}, 10}), (Tokens{0}));
  EXPECT_EQ(search(next, {3, 2.0, {}, 10}), (Tokens{1, 0}));
  EXPECT_EQ(search(next, {3, 2.0, {}, 10, 1}), (Tokens{0})) << "both are one token long but for the first";
}

TEST(BeamSearch, StopsAtTheMostTokensAndWhereNothingGoesOn) {
  const std::vector<std::vector<double>> loop = {{0, 0.9, 0.1}, {0, 0.9, 0.1}, {0, 0.9, 0.1}};
  EXPECT_EQ(search(loop, {2, 1.0, {}, 4}), (Tokens{1, 1, 1, 1}));
  const std::vector<std::vector<double>> certain = {{0, 1, 0}, {1, 0, 0}, {1, 0, 0}};
  EXPECT_EQ(search(certain, {4, 1.0, {}, 9}), (Tokens{1, 0}));
  BeamSearch broken({2, 1.0, {0}, 5});
  const std::vector<std::vector<float>> nothing = {{std::nanf(""), std::nanf("")}};
  EXPECT_THROW(broken.advance(nothing), Error);
}

}  // namespace
}  // namespace convoy
