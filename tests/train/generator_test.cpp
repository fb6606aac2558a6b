// Generation with kept keys and values against the whole text computed anew for every token.
#include "train/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/test_device.h"
#include "train/tiny_model.h"

namespace convoy {
namespace {

using testing::sharpen;
using testing::tiny_config;
using testing::tiny_text_families;
using Tokens = Generator::Tokens;

std::vector<Tokens> random_prompts(std::size_t count, std::size_t longest, std::uint64_t seed) {
  std::vector<Tokens> prompts(count);
  RandomStream random(seed, 1);
  for (Tokens& prompt : prompts) {
    const std::size_t length = 1 + random.below(longest);
    while (prompt.size() < length) prompt.push_back(static_cast<std::int32_t>(1 + random.below(96)));
  }
  return prompts;
}

class Families : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Device> device_ = testing::test_device();
};

TEST_P(Families, TextsWithCacheEqualThoseWithout) {
  for (const bool windowed : {false, true}) {
    Json config = tiny_config(GetParam());
    if (windowed) {
      if (GetParam() == "gpt2" || GetParam() == "chatglm") continue;
      config["use_sliding_window"] = true;
      config["sliding_window"] = 5;
      config["max_window_layers"] = 1;
    }
    const auto model = make_model(config, "test");
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      if (dtype == DType::kF64 && !device_->host_memory()) continue;  // GPUs train and generate in f32 at most
      Generator whole(*device_, *model, dtype, 48, 1, false);
      Generator one(*device_, *model, dtype, 48);
      Generator several(*device_, *model, dtype, 48, 3);
      ASSERT_TRUE(one.has_cache() && several.has_cache() && !whole.has_cache());
      for (Generator* each : {&whole, &one, &several}) sharpen(each->store());
      const std::vector<Tokens> prompts = random_prompts(7, 30, 3);
      GenerationOptions options;
      options.max_new_tokens = 14;
      options.stop_tokens = {5, 6, 7};
      options.sampling.temperature = 0;
      const std::vector<Tokens> expected = whole.generate(prompts, options);
      EXPECT_EQ(one.generate(prompts, options), expected);
      EXPECT_EQ(several.generate(prompts, options), expected);
      EXPECT_EQ(several.generate(prompts, options), expected) << "what an earlier text left in the cache counts";
      options.sampling.temperature = 0.7;
      options.sampling.top_k = 20;
      options.sampling.repetition_penalty = 1.3;
      const std::vector<Tokens> drawn = whole.generate(prompts, options);
      EXPECT_NE(drawn, expected);
      EXPECT_EQ(one.generate(prompts, options), drawn);
      EXPECT_EQ(several.generate(prompts, options), drawn);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Generation, Families, ::testing::ValuesIn(tiny_text_families()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');  // as GoogleTest wants
  return name;
});

TEST(Generator, EndsWhereItShould) {
  const std::unique_ptr<Device> device = testing::test_device();
  const auto model = make_model(tiny_config("llama"), "test");
  Generator generator(*device, *model, DType::kF32, 12, 2);
  sharpen(generator.store());
  GenerationOptions options;
  options.sampling.temperature = 0;
  options.max_new_tokens = 100;
  const Tokens all = generator.generate({{1, 2, 3}}, options).front();
  EXPECT_EQ(all.size(), 9u) << "up to max_length";
  options.stop_tokens = {all[4]};
  const auto first = static_cast<std::size_t>(std::find(all.begin(), all.end(), all[4]) - all.begin());
  EXPECT_EQ(generator.generate({{1, 2, 3}}, options).front(), Tokens(all.begin(), all.begin() + first + 1));
  options.stop_tokens.clear();
  int seen = 0;
  options.on_token = [&](std::size_t text, std::int32_t token) {
    EXPECT_EQ(text, 0u);
    EXPECT_EQ(token, all[static_cast<std::size_t>(seen)]);
    return ++seen < 3;
  };
  EXPECT_EQ(generator.generate({{1, 2, 3}}, options).front().size(), 3u);
  EXPECT_THROW(generator.generate({Tokens(12, 1)}, options), Error);
  EXPECT_TRUE(generator.generate({}, options).empty());
}

// Dynamic rotary scaling turns all earlier keys where the text grows past the trained length: nothing can be kept.
TEST(Generator, KeepsNothingWhereTheTablesChange) {
  const std::unique_ptr<Device> device = testing::test_device();
  Json config = tiny_config("llama");
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  const auto model = make_model(config, "test");
  EXPECT_TRUE(Generator(*device, *model, DType::kF32, 64).has_cache());
  Generator longer(*device, *model, DType::kF32, 80, 2);
  EXPECT_FALSE(longer.has_cache());
  sharpen(longer.store());
  GenerationOptions options;
  options.max_new_tokens = 3;
  options.sampling.temperature = 0;
  const std::vector<Tokens> prompts = random_prompts(3, 70, 2);
  const std::vector<Tokens> texts = longer.generate(prompts, options);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<float> logits = longer.logits(prompts[i]);
    EXPECT_EQ(texts[i].front(), std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
}

TEST(Generator, CacheIsPlanned) {
  const std::unique_ptr<Device> device = testing::test_device();
  const auto model = make_model(tiny_config("llama"), "test");
  const Generator one(*device, *model, DType::kBF16, 40), four(*device, *model, DType::kBF16, 40, 4);
  // keys and values · layers · tokens · key heads · head_dim · bytes
  EXPECT_EQ(one.cache_bytes(), 2u * 2 * 40 * 2 * 8 * 2);
  EXPECT_EQ(four.cache_bytes(), 4 * one.cache_bytes());
}

}  // namespace
}  // namespace convoy
