#include "models/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "models/model.h"

namespace convoy {
namespace {

RopeConfig config(RopeConfig::Type type) {
  RopeConfig c;
  c.type = type;
  c.rotary_dim = 8;
  c.max_positions = 128;
  c.original_max_positions = 32;
  c.factor = 4;
  return c;
}

TEST(Rope, DefaultIsAPowerLaw) {
  const RopeFrequencies f = rope_frequencies(config(RopeConfig::Type::kDefault), 1);
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(f.inv_freq[static_cast<std::size_t>(i)], std::pow(10000.0, -2.0 * i / 8), 1e-7);
  EXPECT_EQ(f.attention_factor, 1);
}

TEST(Rope, LinearDividesEveryFrequency) {
  const auto base = rope_frequencies(config(RopeConfig::Type::kDefault), 1).inv_freq;
  const auto scaled = rope_frequencies(config(RopeConfig::Type::kLinear), 1).inv_freq;
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(scaled[i], base[i] / 4, 1e-8);
}

TEST(Rope, DynamicChangesOnlyBeyondTheTrainedLength) {
  const RopeConfig c = config(RopeConfig::Type::kDynamic);
  const auto base = rope_frequencies(config(RopeConfig::Type::kDefault), 1).inv_freq;
  EXPECT_EQ(rope_frequencies(c, 128).inv_freq, base);
  const auto longer = rope_frequencies(c, 256).inv_freq;
  const double theta = 10000 * std::pow(4.0 * 256 / 128 - 3, 8.0 / 6);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(longer[static_cast<std::size_t>(i)], std::pow(theta, -2.0 * i / 8), 1e-7);
  EXPECT_TRUE(c.depends_on_length());
}

TEST(Rope, Llama3KeepsHighFrequenciesAndDividesLowOnes) {
  RopeConfig c = config(RopeConfig::Type::kLlama3);
  c.low_freq_factor = 1;
  c.high_freq_factor = 4;
  const auto base = rope_frequencies(config(RopeConfig::Type::kDefault), 1).inv_freq;
  const auto scaled = rope_frequencies(c, 1).inv_freq;
  EXPECT_EQ(scaled[0], base[0]);              // wavelength 6.3 < 32 / 4
  EXPECT_NEAR(scaled[3], base[3] / 4, 1e-9);  // wavelength 6283 > 32
}

TEST(Rope, YarnMixesAndScalesAttention) {
  const RopeConfig c = config(RopeConfig::Type::kYarn);
  const auto base = rope_frequencies(config(RopeConfig::Type::kDefault), 1).inv_freq;
  const RopeFrequencies f = rope_frequencies(c, 1);
  EXPECT_NEAR(f.attention_factor, 0.1 * std::log(4.0) + 1, 1e-6);
  EXPECT_EQ(f.inv_freq[0], base[0]);
  EXPECT_NEAR(f.inv_freq[3], base[3] / 4, 1e-9);
}

TEST(Rope, LongRopeChoosesItsFactorsByLength) {
  RopeConfig c = config(RopeConfig::Type::kLongRope);
  c.short_factor = {1, 1, 1, 1};
  c.long_factor = {2, 2, 2, 2};
  const auto shorter = rope_frequencies(c, 32).inv_freq;
  const auto longer = rope_frequencies(c, 33).inv_freq;
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(longer[i], shorter[i] / 2, 1e-9);
  EXPECT_NEAR(rope_frequencies(c, 1).attention_factor, std::sqrt(1 + std::log(4.0) / std::log(32.0)), 1e-6);
}

TEST(Rope, BothSpellingsOfTheConfigurationAreRead) {
  Json v4 = {{"model_type", "llama"},
             {"vocab_size", 10},
             {"hidden_size", 16},
             {"intermediate_size", 16},
             {"num_hidden_layers", 1},
             {"num_attention_heads", 2},
             {"max_position_embeddings", 64},
             {"rope_theta", 5000.0},
             {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}};
  Json v5 = v4;
  v5.erase("rope_theta");
  v5.erase("rope_scaling");
  v5["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5000.0}};
  std::vector<float> a(32), b(32), c(32), d(32);
  make_model(v4, "v4")->fill_tables(8, a, b);
  make_model(v5, "v5")->fill_tables(8, c, d);
  EXPECT_EQ(a, c);
  EXPECT_EQ(b, d);
  v5["rope_parameters"]["rope_type"] = "spiral";
  EXPECT_THROW(make_model(v5, "v5"), Error);
}

}  // namespace
}  // namespace convoy
