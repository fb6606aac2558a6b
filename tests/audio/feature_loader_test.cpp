#include "audio/feature_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "../data/temp_folder.h"
#include "audio/manifest.h"
#include "base/error.h"
#include "recordings.h"

namespace convoy {
namespace {

using testing::HasSubstr;

constexpr LogMelConfig kConfig{.feature_size = 16, .chunk_length = 2};

class Loading : public testing::Test {
 protected:
  // Tones of 0.2 to 1.9 s.
  Loading() {
    std::string lines;
    for (int i = 0; i < 23; ++i) {
      const double seconds = 0.2 + (i * 7 % 23) * 0.075;
      const std::string name = "tone" + std::to_string(i) + ".wav";
      folder_.write(name, recording({.rate = i % 2 == 0 ? 16000 : 22050, .seconds = seconds, .hertz = 200.0 + 40 * i}));
      lines += "{\"audio\": \"" + name + "\", \"text\": \"tone\"}\n";
    }
    utterances_ = read_manifest(folder_.write("m.jsonl", lines));
    measure_durations(utterances_);
  }
  std::shared_ptr<const std::vector<Utterance>> shared() const {
    return std::make_shared<const std::vector<Utterance>>(utterances_);
  }
  std::vector<FeatureStep> all(const BucketOptions& buckets, FeatureLoaderOptions options) const {
    if (options.epochs == 0) options.epochs = 1;
    FeatureLoader loader(shared(), kConfig, buckets, options);
    std::vector<FeatureStep> steps;
    while (auto step = loader.next()) steps.push_back(std::move(*step));
    return steps;
  }
  TempFolder folder_;
  std::vector<Utterance> utterances_;
};

void expect_equal(const std::vector<FeatureStep>& a, const std::vector<FeatureStep>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t s = 0; s < a.size(); ++s) {
    ASSERT_EQ(a[s].micro_batches.size(), b[s].micro_batches.size());
    for (std::size_t m = 0; m < a[s].micro_batches.size(); ++m) {
      const FeatureBatch &x = a[s].micro_batches[m], &y = b[s].micro_batches[m];
      EXPECT_EQ(x.samples, y.samples);
      EXPECT_EQ(x.valid_frames, y.valid_frames);
      EXPECT_EQ(x.features, y.features);
    }
  }
}

TEST_F(Loading, RowsAreThePaddedFeatures) {
  const LogMel log_mel(kConfig);
  const UtteranceReader reader;
  std::vector<int> seen(utterances_.size());
  for (const FeatureStep& step : all({.budget = 800, .buckets = 4, .fixed_length = 200}, {})) {
    for (const FeatureBatch& batch : step.micro_batches) {
      EXPECT_EQ(batch.frames, 200);
      for (std::size_t r = 0; r < batch.samples.size(); ++r) {
        if (batch.samples[r] < 0) continue;
        const auto sample = static_cast<std::size_t>(batch.samples[r]);
        ++seen[sample];
        const Features expected = log_mel.padded(reader.decode(utterances_[sample]).samples);
        const auto row = std::span(batch.features).subspan(r * 16 * 200, 16 * 200);
        EXPECT_TRUE(std::equal(row.begin(), row.end(), expected.values.begin(), expected.values.end())) << sample;
        EXPECT_EQ(batch.valid_frames[r], expected.valid_frames);
      }
    }
  }
  for (const int times : seen) EXPECT_EQ(times, 1);
}

TEST_F(Loading, BucketsHoldTheBeginningOfThePaddedFeatures) {
  const LogMel log_mel(kConfig);
  const UtteranceReader reader;
  for (const FeatureStep& step : all({.budget = 600, .buckets = 4}, {})) {
    for (const FeatureBatch& batch : step.micro_batches) {
      EXPECT_LE(batch.rows * batch.frames, 600);
      for (std::size_t r = 0; r < batch.samples.size(); ++r) {
        if (batch.samples[r] < 0) continue;
        const Features expected =
            log_mel.padded(reader.decode(utterances_[static_cast<std::size_t>(batch.samples[r])]).samples);
        for (std::int64_t m = 0; m < 16; ++m) {
          for (std::int64_t t = 0; t < batch.frames; ++t) {
            ASSERT_EQ(
                batch.features[static_cast<std::size_t>((static_cast<std::int64_t>(r) * 16 + m) * batch.frames + t)],
                expected.values[static_cast<std::size_t>(m * 200 + t)]);
          }
        }
      }
    }
  }
}

TEST_F(Loading, DoesNotDependOnThreadsOrCache) {
  const BucketOptions buckets{.budget = 600, .buckets = 3, .accumulation = 2, .seed = 4};
  FeatureLoaderOptions options;
  options.features.speeds = {0.9, 1.0, 1.1};
  options.features.spec_augment.mask_time_prob = 0.1;
  options.features.seed = 9;
  options.epochs = 2;
  options.threads = 0;
  const std::vector<FeatureStep> expected = all(buckets, options);
  EXPECT_EQ(expected.back().epoch, 1);
  EXPECT_TRUE(expected.back().ends_epoch);
  options.threads = 4;
  expect_equal(expected, all(buckets, options));
  options.features.cache = folder_.path() / "cache";
  expect_equal(expected, all(buckets, options));
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options.features.cache)) {
    if (!entry.is_regular_file()) continue;
    ++files;
    // Half of them are damaged: they are made anew.
    if (files % 2 == 0) std::filesystem::resize_file(entry.path(), entry.file_size() / 2);
  }
  EXPECT_GE(files, utterances_.size());
  expect_equal(expected, all(buckets, options));
}

TEST_F(Loading, RanksShareTheMicroBatches) {
  const std::vector<FeatureStep> whole = all({.budget = 600, .buckets = 3, .accumulation = 2}, {});
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    FeatureLoaderOptions options;
    options.rank = rank;
    const std::vector<FeatureStep> part = all({.budget = 600, .buckets = 3, .world = 2}, options);
    ASSERT_EQ(part.size(), whole.size());
    for (std::size_t s = 0; s < whole.size(); ++s) {
      EXPECT_EQ(part[s].first_micro_batch, rank);
      EXPECT_EQ(part[s].micro_batches.at(0).features, whole[s].micro_batches[static_cast<std::size_t>(rank)].features);
    }
  }
}

TEST_F(Loading, ResumesInTheMiddle) {
  const BucketOptions buckets{.budget = 400, .buckets = 3};
  FeatureLoaderOptions options;
  options.epochs = 2;
  std::vector<FeatureStep> whole = all(buckets, options);
  FeatureLoader first(shared(), kConfig, buckets, options);
  const std::int64_t steps = first.steps_in_epoch(0);
  FeatureLoader loader(shared(), kConfig, buckets, options, 0, steps - 1);
  std::vector<FeatureStep> rest;
  while (auto step = loader.next()) rest.push_back(std::move(*step));
  whole.erase(whole.begin(), whole.begin() + (steps - 1));
  expect_equal(whole, rest);
}

TEST_F(Loading, BadRecordingsStopTheRunOrAreLeftOut) {
  folder_.write("tone3.wav", "no recording any more");
  std::filesystem::remove(folder_.path() / "tone5.wav");
  folder_.write("tone6.wav", recording({.seconds = 1.6, .gains = {0.0F}}));
  FeatureLoaderOptions options;
  try {
    all({.budget = 600}, options);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("m.jsonl:4"), HasSubstr("m.jsonl:6")));
  }
  options.skip_bad_audio = true;
  options.epochs = 1;
  FeatureLoader loader(shared(), kConfig, {.budget = 600}, options);
  std::vector<int> seen(utterances_.size());
  while (const auto step = loader.next()) {
    for (const FeatureBatch& batch : step->micro_batches) {
      for (std::size_t r = 0; r < batch.samples.size(); ++r) {
        if (batch.samples[r] >= 0) {
          ++seen[static_cast<std::size_t>(batch.samples[r])];
        } else {
          EXPECT_EQ(batch.valid_frames[r], 0);
        }
      }
    }
  }
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i == 3 || i == 5 ? 0 : 1);
  EXPECT_EQ(loader.report().samples, 21);
  EXPECT_EQ(loader.report().documents, 23);
  EXPECT_EQ(loader.report().skipped, (std::map<std::string, std::int64_t>{{"silent", 1}, {"unreadable", 2}}));
}

TEST_F(Loading, WrongDurationsAreNoticed) {
  utterances_[2].duration = 0.01;
  FeatureLoaderOptions options;
  try {
    all({.budget = 600, .buckets = 20}, options);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("m.jsonl:3"), HasSubstr("correct the duration")));
  }
  utterances_[2].duration = -1;
  EXPECT_THROW(all({.budget = 600}, options), Error);
}

TEST_F(Loading, StopsInTheMiddleOfItsWork) {
  FeatureLoaderOptions options;
  options.threads = 3;
  options.prefetch = 8;
  FeatureLoader loader(shared(), kConfig, {.budget = 400}, options);
  EXPECT_TRUE(loader.next().has_value());
}

TEST_F(Loading, RefusesOptionsOutOfRange) {
  FeatureLoaderOptions options;
  options.rank = 1;
  EXPECT_THROW(all({.budget = 600}, options), Error);
  options = {};
  options.features.speeds = {0.0};
  EXPECT_THROW(all({.budget = 600}, options), Error);
  EXPECT_THROW(FeatureLoader(shared(), kConfig, {.budget = 600}, {}, 0, 1000), Error);
}

TEST(FeatureCacheFolder, CannotBeMadeInAFile) {
  const TempFolder folder;
  EXPECT_THROW(FeatureCache(folder.write("file", "x")), Error);
}

}  // namespace
}  // namespace convoy
