#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "audio/feature_loader.h"
#include "base/error.h"

namespace convoy {

FeatureMaker::FeatureMaker(std::shared_ptr<const std::vector<Utterance>> utterances, const LogMelConfig& config,
                           FeatureOptions options)
    : utterances_(std::move(utterances)), options_(std::move(options)), log_mel_(config) {
  options_.spec_augment.validate();
  for (const double speed : options_.speeds) {
    if (!(speed >= 0.25 && speed <= 4)) {
      throw usage_error(fmt::format("a speed of {} is asked for", speed))
          .mend("give speeds from 0.25 to 4, such as 0.9, 1, 1.1");
    }
  }
  if (!options_.cache.empty()) cache_.emplace(options_.cache);
}

std::int64_t FeatureMaker::frames_at(std::int64_t sample, double speed) const {
  const Utterance& said = utterance(sample);
  if (!(said.duration >= 0)) {
    throw data_error("the duration of the recording is not known")
        .at(said.where)
        .mend("give it in the manifest, or measure it");
  }
  // A header's duration and the decoder's count may differ by a few samples.
  const LogMelConfig& config = log_mel_.config();
  const auto samples = static_cast<std::int64_t>(std::ceil(said.duration / speed * config.sampling_rate - 0.5));
  return std::max<std::int64_t>(1, config.valid_frames(samples));
}

std::int64_t FeatureMaker::frames(std::int64_t sample, std::int64_t epoch) const {
  return frames_at(sample, choose_speed(options_.speeds, {options_.seed, epoch, sample}));
}

std::vector<std::int64_t> FeatureMaker::all_frames(std::int64_t epoch) const {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < size(); ++i) all.push_back(frames(i, epoch));
  return all;
}

std::vector<std::int64_t> FeatureMaker::longest_frames() const {
  const double slowest =
      options_.speeds.empty() ? 1.0 : *std::min_element(options_.speeds.begin(), options_.speeds.end());
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < size(); ++i) all.push_back(frames_at(i, slowest));
  return all;
}

Features FeatureMaker::make(std::int64_t sample, std::int64_t epoch) const {
  const Utterance& said = utterance(sample);
  const AugmentKey key{options_.seed, epoch, sample};
  const double speed = choose_speed(options_.speeds, key);
  std::optional<Features> features;
  std::uint64_t cache_key = 0;
  if (cache_) {
    cache_key = cache_->key(said, speed, log_mel_.config());
    features = cache_->get(cache_key);
  }
  if (!features) {
    DecodeOptions decoding;
    decoding.sampling_rate = log_mel_.config().sampling_rate;
    decoding.speed = speed;
    decoding.allow_truncated = options_.allow_truncated;
    const Audio audio = reader_.decode(said, decoding);
    features = log_mel_.sounding(audio.samples);
    if (cache_) cache_->put(cache_key, *features);
  }
  spec_augment(*features, options_.spec_augment, key);
  return std::move(*features);
}

}  // namespace convoy
