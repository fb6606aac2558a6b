#include "audio/augment.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/error.h"

namespace convoy {
namespace {

Features ones(std::int64_t bins, std::int64_t frames, std::int64_t valid) {
  return {bins, frames, valid, 1, std::vector<float>(static_cast<std::size_t>(bins * frames), 1)};
}

float at(const Features& f, std::int64_t bin, std::int64_t frame) {
  return f.values[static_cast<std::size_t>(bin * f.frames + frame)];
}
// Frames masked over all bins.
std::int64_t masked_frames(const Features& f) {
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < f.frames; ++t) {
    bool all = true;
    for (std::int64_t m = 0; m < f.bins; ++m) all = all && at(f, m, t) == 0;
    count += all ? 1 : 0;
  }
  return count;
}

TEST(SpecAugment, MasksAShareOfTheFramesInSpans) {
  const SpecAugmentConfig config{.mask_time_prob = 0.2};
  std::int64_t most = 0, sum = 0;
  for (std::int64_t sample = 0; sample < 50; ++sample) {
    Features f = ones(8, 600, 500);
    spec_augment(f, config, {.seed = 1, .epoch = 2, .sample = sample});
    const std::int64_t masked = masked_frames(f);
    most = std::max(most, masked);
    sum += masked;
    for (std::int64_t t = 500; t < 600; ++t) ASSERT_EQ(at(f, 3, t), 1) << "padding is left alone";
  }
  EXPECT_LE(most, 110);         // 10 or 11 spans of 10
  EXPECT_GT(sum / 50.0, 75.0);  // spans overlap
  EXPECT_LT(sum / 50.0, 100.0);
}

TEST(SpecAugment, MasksBins) {
  Features f = ones(80, 100, 60);
  spec_augment(f, {.mask_feature_prob = 0.1, .mask_feature_length = 5, .mask_feature_min_masks = 2}, {7, 0, 0});
  std::int64_t masked = 0;
  for (std::int64_t m = 0; m < 80; ++m) {
    masked += at(f, m, 0) == 0 ? 1 : 0;
    ASSERT_EQ(at(f, m, 0), at(f, m, 59));
    ASSERT_EQ(at(f, m, 60), 1);
  }
  EXPECT_GE(masked, 5);
  EXPECT_LE(masked, 10);
}

TEST(SpecAugment, MasksOfRandomWidth) {
  const SpecAugmentConfig config{
      .time_masks = 2, .time_width = 30, .time_share = 0.1, .feature_masks = 1, .feature_width = 10};
  std::map<std::int64_t, int> widths;
  for (std::int64_t sample = 0; sample < 200; ++sample) {
    Features f = ones(40, 100, 100);
    spec_augment(f, config, {1, 1, sample});
    ++widths[masked_frames(f)];
  }
  EXPECT_LE(widths.rbegin()->first, 20);  // two of at most a tenth of the clip
  EXPECT_GT(widths.size(), 10U);
}

TEST(SpecAugment, DependsOnSeedEpochAndSampleAlone) {
  const SpecAugmentConfig config{.mask_time_prob = 0.1, .feature_masks = 2, .feature_width = 20};
  const auto masked = [&](const AugmentKey& key) {
    Features f = ones(80, 300, 300);
    spec_augment(f, config, key);
    return f.values;
  };
  EXPECT_EQ(masked({1, 2, 3}), masked({1, 2, 3}));
  EXPECT_NE(masked({1, 2, 3}), masked({2, 2, 3}));
  EXPECT_NE(masked({1, 2, 3}), masked({1, 3, 3}));
  EXPECT_NE(masked({1, 2, 3}), masked({1, 2, 4}));
}

TEST(SpecAugment, ShortClipsAndNoMasks) {
  for (const std::int64_t frames : {1, 5, 9, 10, 11}) {
    Features f = ones(4, frames, frames);
    spec_augment(f,
                 {.mask_time_prob = 1,
                  .mask_feature_prob = 1,
                  .time_masks = 3,
                  .time_width = 50,
                  .feature_masks = 3,
                  .feature_width = 50},
                 {1, 1, 1});
  }
  Features f = ones(4, 20, 20);
  spec_augment(f, {}, {1, 1, 1});
  EXPECT_EQ(f.values, ones(4, 20, 20).values);
}

TEST(SpecAugment, RefusesSettingsOutOfRange) {
  EXPECT_THROW(SpecAugmentConfig{.mask_time_prob = 1.5}.validate(), Error);
  EXPECT_THROW(SpecAugmentConfig{.mask_time_length = 0}.validate(), Error);
  EXPECT_THROW(SpecAugmentConfig{.time_width = -1}.validate(), Error);
  EXPECT_NO_THROW(SpecAugmentConfig{}.validate());
}

TEST(Speed, EveryFactorIsChosen) {
  const std::vector<double> factors = {0.9, 1.0, 1.1};
  std::map<double, int> counts;
  for (std::int64_t sample = 0; sample < 600; ++sample) ++counts[choose_speed(factors, {1, 0, sample})];
  ASSERT_EQ(counts.size(), 3U);
  for (const auto& [speed, count] : counts) EXPECT_GT(count, 150) << speed;
  EXPECT_EQ(choose_speed(factors, {1, 0, 5}), choose_speed(factors, {1, 0, 5}));
  EXPECT_EQ(choose_speed({}, {1, 0, 5}), 1);
}

}  // namespace
}  // namespace convoy
