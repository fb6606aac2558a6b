// Augmentation of recordings and features. Every choice is a function of (seed, epoch, sample) alone: the same on every
// rank, in every thread and after a resumption.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "audio/log_mel.h"
#include "base/random.h"

namespace convoy {

struct AugmentKey {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0, sample = 0;
  // One stream of random numbers per use.
  RandomStream stream(std::uint32_t use) const;
};

// Masks over time and over mel bins (Park et al., "SpecAugment", Interspeech 2019), in two ways that may be combined: a
// share of the frames in spans of fixed length, with the names of Whisper's config.json; and the paper's, a number of
// masks of random width.
struct SpecAugmentConfig {
  double mask_time_prob = 0;  // share of the frames that spans of mask_time_length cover, where they do not overlap
  int mask_time_length = 10, mask_time_min_masks = 2;
  double mask_feature_prob = 0;  // the same over mel bins
  int mask_feature_length = 10, mask_feature_min_masks = 0;

  int time_masks = 0, time_width = 0;  // masks of 0 … time_width frames, and of at most
  double time_share = 1;               // this share of the clip
  int feature_masks = 0, feature_width = 0;
  float value = 0;  // what masked features become

  bool any() const { return mask_time_prob > 0 || mask_feature_prob > 0 || time_masks > 0 || feature_masks > 0; }
  // Throws a usage error that names the setting.
  void validate() const;
  std::string text() const;
};

// Masks within the first valid_frames frames; padding stays as it is.
void spec_augment(Features& features, const SpecAugmentConfig& config, const AugmentKey& key);

// One of the factors (such as 0.9, 1, 1.1; Ko et al., "Audio Augmentation for Speech Recognition", Interspeech 2015),
// each as likely as the others; 1 where there are none. For DecodeOptions::speed.
double choose_speed(std::span<const double> factors, const AugmentKey& key);

}  // namespace convoy
