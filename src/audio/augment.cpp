#include "audio/augment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/hash.h"

namespace convoy {
namespace {

enum Use : std::uint32_t { kSpeed = 1, kTimeSpans, kFeatureSpans, kTimeMasks, kFeatureMasks };

// Starts of spans of `width` within 0 … length - 1, all different: about prob · length / width of them.
std::vector<std::int64_t> span_starts(std::int64_t length, double prob, std::int64_t width, std::int64_t least,
                                      RandomStream& random) {
  if (prob <= 0 || length < width) return {};
  auto count = static_cast<std::int64_t>(prob * static_cast<double>(length) / static_cast<double>(width) +
                                         static_cast<double>(random.uniform()));
  const std::int64_t places = length - width + 1;
  count = std::min({std::max(count, least), length / width, places});
  std::vector<std::int64_t> starts(static_cast<std::size_t>(places));
  std::iota(starts.begin(), starts.end(), 0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    std::swap(starts[i], starts[i + random.below(starts.size() - i)]);
  }
  starts.resize(static_cast<std::size_t>(count));
  return starts;
}

class Masker {
 public:
  Masker(Features& features, float value) : features_(features), value_(value) {}
  void time(std::int64_t begin, std::int64_t width) {
    for (std::int64_t m = 0; m < features_.bins; ++m) fill(m, begin, width);
  }
  void bins(std::int64_t begin, std::int64_t width) {
    for (std::int64_t m = begin; m < begin + width; ++m) fill(m, 0, features_.valid_frames);
  }

 private:
  void fill(std::int64_t bin, std::int64_t begin, std::int64_t width) {
    std::fill_n(features_.values.begin() + bin * features_.frames + begin, width, value_);
  }
  Features& features_;
  float value_;
};

}  // namespace

RandomStream AugmentKey::stream(std::uint32_t use) const {
  const std::array<std::int64_t, 3> where = {epoch, sample, use};
  return {seed, hash64(std::as_bytes(std::span(where)))};
}

void SpecAugmentConfig::validate() const {
  const auto demand = [](bool holds, const char* what) {
    if (!holds) throw usage_error(what).mend("see SpecAugment in the documentation of the audio settings");
  };
  const auto share = [](double given) { return given >= 0 && given <= 1; };
  demand(share(mask_time_prob), "mask_time_prob is not from 0 to 1");
  demand(share(mask_feature_prob), "mask_feature_prob is not from 0 to 1");
  demand(share(time_share), "time_share is not from 0 to 1");
  demand(mask_time_length >= 1 && mask_feature_length >= 1, "mask_time_length and mask_feature_length are at least 1");
  demand(mask_time_min_masks >= 0 && mask_feature_min_masks >= 0, "the least numbers of masks are not negative");
  demand(time_masks >= 0 && time_width >= 0 && feature_masks >= 0 && feature_width >= 0,
         "numbers and widths of masks are not negative");
  demand(std::isfinite(value), "the value of masked features is finite");
}

std::string SpecAugmentConfig::text() const {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", mask_time_prob, mask_time_length, mask_time_min_masks,
                     mask_feature_prob, mask_feature_length, mask_feature_min_masks, time_masks, time_width, time_share,
                     feature_masks, feature_width, value);
}

void spec_augment(Features& features, const SpecAugmentConfig& config, const AugmentKey& key) {
  Masker mask(features, config.value);
  const std::int64_t frames = std::min(features.valid_frames, features.frames);
  RandomStream time_spans = key.stream(kTimeSpans), feature_spans = key.stream(kFeatureSpans);
  for (const std::int64_t start :
       span_starts(frames, config.mask_time_prob, config.mask_time_length, config.mask_time_min_masks, time_spans)) {
    mask.time(start, config.mask_time_length);
  }
  for (const std::int64_t start : span_starts(features.bins, config.mask_feature_prob, config.mask_feature_length,
                                              config.mask_feature_min_masks, feature_spans)) {
    mask.bins(start, config.mask_feature_length);
  }
  const auto random_masks = [&](int count, std::int64_t widest, std::int64_t length, RandomStream random, auto apply) {
    for (int i = 0; i < count; ++i) {
      const auto width = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(widest) + 1));
      const auto start = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(length - width) + 1));
      apply(start, width);
    }
  };
  const auto share = static_cast<std::int64_t>(config.time_share * static_cast<double>(frames));
  random_masks(config.time_masks, std::min<std::int64_t>({config.time_width, share, frames}), frames,
               key.stream(kTimeMasks), [&](std::int64_t start, std::int64_t width) { mask.time(start, width); });
  random_masks(config.feature_masks, std::min<std::int64_t>(config.feature_width, features.bins), features.bins,
               key.stream(kFeatureMasks), [&](std::int64_t start, std::int64_t width) { mask.bins(start, width); });
}

double choose_speed(std::span<const double> factors, const AugmentKey& key) {
  if (factors.empty()) return 1;
  return factors[key.stream(kSpeed).below(factors.size())];
}

}  // namespace convoy
