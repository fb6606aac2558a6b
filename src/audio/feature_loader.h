// Batches of features, made ahead of their use by threads: recordings are decoded, resampled, turned into log-mel
// features, augmented and padded.
//
//   auto utterances = std::make_shared<…>(read_manifests({"data/*.jsonl"}));  // durations known: measure_durations()
//   FeatureLoader loader(utterances, config, buckets, options);
//   while (auto step = loader.next()) { … step->micro_batches … }
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "audio/augment.h"
#include "audio/feature_cache.h"
#include "audio/log_mel.h"
#include "audio/utterance.h"
#include "data/duration_buckets.h"
#include "data/report.h"

namespace convoy {

// How an utterance becomes features.
struct FeatureOptions {
  std::vector<double> speeds = {};  // speed perturbation: one of these each time; none: as recorded
  SpecAugmentConfig spec_augment = {};
  std::uint64_t seed = 0;            // of both
  std::filesystem::path cache = {};  // a folder; empty: none. Masks are applied after it
  bool allow_truncated = false;      // DecodeOptions::allow_truncated
};

// Features of single utterances. const calls may come from many threads at once.
class FeatureMaker {
 public:
  FeatureMaker(std::shared_ptr<const std::vector<Utterance>> utterances, const LogMelConfig& config,
               FeatureOptions options);
  // Of the utterance with this number in this epoch: LogMel::sounding(), augmented. Errors name the utterance.
  Features make(std::int64_t sample, std::int64_t epoch) const;
  // Frames that hold sound in this epoch, from the duration, rounded up: what to plan batches with.
  std::int64_t frames(std::int64_t sample, std::int64_t epoch) const;
  // frames() of all utterances; of the slowest speed, what lengths of buckets are chosen by.
  std::vector<std::int64_t> all_frames(std::int64_t epoch) const;
  std::vector<std::int64_t> longest_frames() const;
  const LogMel& log_mel() const { return log_mel_; }
  std::int64_t size() const { return static_cast<std::int64_t>(utterances_->size()); }
  const Utterance& utterance(std::int64_t sample) const { return (*utterances_)[static_cast<std::size_t>(sample)]; }

 private:
  std::int64_t frames_at(std::int64_t sample, double speed) const;
  std::shared_ptr<const std::vector<Utterance>> utterances_;
  FeatureOptions options_;
  LogMel log_mel_;
  UtteranceReader reader_;
  std::optional<FeatureCache> cache_;
};

// rows · bins · frames values; a row is laid out as Features are. Rows beyond samples, and those whose sample is -1,
// are zeros and have no valid frames.
struct FeatureBatch {
  std::int64_t rows = 0, bins = 0, frames = 0;
  std::vector<float> features;
  std::vector<std::int64_t> valid_frames;  // of each row; the mask
  std::vector<std::int64_t> samples;       // of each row, into the list of utterances; -1: none
};

struct FeatureStep {
  std::int64_t epoch = 0, index = 0;        // index: of the step within its epoch
  std::vector<FeatureBatch> micro_batches;  // this rank's
  std::int64_t first_micro_batch = 0;       // index of the first of them among all of the step
  bool ends_epoch = false;
};

struct FeatureLoaderOptions {
  FeatureOptions features = {};
  int threads = 2;            // 0: made when asked for
  std::int64_t prefetch = 2;  // steps made ahead
  std::int64_t rank = 0;
  std::int64_t epochs = 0;  // stop after so many; 0: go on for ever
  // Recordings that cannot be read leave an empty row (sample -1) and a line in the report, instead of an error.
  bool skip_bad_audio = false;
};

class FeatureLoader {
 public:
  // `buckets`: budget and lengths are frames. Starts at step `start_step` of `start_epoch`. Throws a usage error for
  // options out of range, and a data error where a duration is not known or an utterance fits no bucket.
  FeatureLoader(std::shared_ptr<const std::vector<Utterance>> utterances, const LogMelConfig& config,
                const BucketOptions& buckets, const FeatureLoaderOptions& options, std::int64_t start_epoch = 0,
                std::int64_t start_step = 0);
  ~FeatureLoader();
  FeatureLoader(const FeatureLoader&) = delete;
  FeatureLoader& operator=(const FeatureLoader&) = delete;

  // The next step; none after the last epoch. What it holds does not depend on the threads. Rethrows what went wrong,
  // of several failures that of the first row.
  std::optional<FeatureStep> next();

  const std::vector<BucketShape>& shapes() const;
  std::int64_t steps_in_epoch(std::int64_t epoch) const;
  PaddingReport padding(std::int64_t epoch) const;
  // Recordings that were left out by skip_bad_audio in the steps handed out so far, and ones that are nothing but
  // silence
  // ("silent"; these are used).
  const DataReport& report() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace convoy
