#include "data/duration_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/random.h"

namespace convoy {
namespace {

using testing::HasSubstr;

// Like utterances: mostly a few seconds, some up to 30, in frames.
std::vector<std::int64_t> utterances(std::size_t n, std::uint64_t seed = 3) {
  RandomStream random(seed, 1);
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < n; ++i) {
    const double u = random.uniform();
    lengths.push_back(static_cast<std::int64_t>(80 + 2900 * u * u * u));
  }
  return lengths;
}

void expect_every_sample_once(const BucketPlan& plan, const DurationBuckets& buckets,
                              const std::vector<std::int64_t>& lengths) {
  const auto group = static_cast<std::size_t>(buckets.options().world * buckets.options().accumulation);
  std::vector<int> seen(lengths.size());
  for (std::size_t s = 0; s < plan.steps.size(); ++s) {
    const BucketStep& step = plan.steps[s];
    const BucketShape& shape = buckets.shapes()[step.bucket];
    ASSERT_EQ(step.micro_batches.size(), group);
    for (const auto& batch : step.micro_batches) {
      if (s + 1 < plan.steps.size()) {
        ASSERT_EQ(static_cast<std::int64_t>(batch.size()), shape.rows);
      }
      ASSERT_LE(static_cast<std::int64_t>(batch.size()), shape.rows);
      for (const std::int64_t sample : batch) {
        ++seen[static_cast<std::size_t>(sample)];
        ASSERT_LE(lengths[static_cast<std::size_t>(sample)], shape.length);
      }
    }
  }
  for (const int times : seen) ASSERT_EQ(times, 1);
}

TEST(DurationBuckets, EverySampleOnceInStepsOfOneShape) {
  for (const std::size_t n : {1UL, 2UL, 7UL, 63UL, 1000UL, 5000UL}) {
    for (const std::int64_t world : {1, 2, 3, 8}) {
      for (const std::int64_t accumulation : {1, 4}) {
        const std::vector<std::int64_t> lengths = utterances(n);
        const DurationBuckets buckets(lengths,
                                      {.budget = 12000, .world = world, .accumulation = accumulation, .seed = 5});
        for (const BucketShape& shape : buckets.shapes()) EXPECT_LE(shape.length * shape.rows, 12000);
        for (std::int64_t epoch = 0; epoch < 2; ++epoch)
          expect_every_sample_once(buckets.plan(epoch), buckets, lengths);
      }
    }
  }
}

TEST(DurationBuckets, LittleOfItIsPadding) {
  const std::vector<std::int64_t> lengths = utterances(20000);
  const DurationBuckets buckets(lengths, {.budget = 24000, .buckets = 12, .world = 2, .accumulation = 2});
  const PaddingReport report = buckets.plan(0).padding;
  EXPECT_LT(report.waste(), 0.15) << report.text();
  EXPECT_GT(1 - static_cast<double>(report.used) / static_cast<double>(report.one_length), 0.7) << report.text();
  EXPECT_THAT(report.text(), HasSubstr("20000 samples"));
  EXPECT_EQ(report.used, std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
}

TEST(DurationBuckets, ChoosesTheBestLengths) {
  // Three kinds of samples and three buckets: no padding at all.
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 60; ++i) lengths.push_back(i % 3 == 0 ? 100 : i % 3 == 1 ? 130 : 900);
  const DurationBuckets buckets(lengths, {.budget = 900, .buckets = 3});
  EXPECT_EQ(buckets.shapes(), (std::vector<BucketShape>{{100, 9}, {130, 6}, {900, 1}}));
  // Two: the near ones go together.
  EXPECT_EQ(DurationBuckets(lengths, {.budget = 900, .buckets = 2}).shapes(),
            (std::vector<BucketShape>{{130, 6}, {900, 1}}));
  // All cuts tried out, on few samples of many lengths.
  const std::vector<std::int64_t> few = {3, 7, 8, 20, 21, 22, 40, 41, 90};
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t a = 0; a < few.size(); ++a) {
    for (std::size_t b = a; b < few.size(); ++b) {
      std::int64_t padding = 0;
      for (const std::int64_t length : few)
        padding += (length <= few[a] ? few[a] : length <= few[b] ? few[b] : 90) - length;
      least = std::min(least, padding);
    }
  }
  const DurationBuckets best(few, {.budget = 1000, .buckets = 3});
  std::int64_t padding = 0;
  for (const std::int64_t length : few) {
    padding += std::find_if(best.shapes().begin(), best.shapes().end(),
                            [&](const BucketShape& s) { return s.length >= length; })
                   ->length -
               length;
  }
  EXPECT_EQ(padding, least);
}

TEST(DurationBuckets, OrderDependsOnSeedAndEpochAlone) {
  const std::vector<std::int64_t> lengths = utterances(500);
  const auto order = [&](std::uint64_t seed, std::int64_t epoch, std::int64_t world, std::int64_t accumulation,
                         bool shuffle) {
    const DurationBuckets buckets(
        lengths, {.budget = 6000, .world = world, .accumulation = accumulation, .seed = seed, .shuffle = shuffle});
    std::vector<std::vector<std::int64_t>> batches;
    for (const BucketStep& step : buckets.plan(epoch).steps)
      batches.insert(batches.end(), step.micro_batches.begin(), step.micro_batches.end());
    return batches;
  };
  EXPECT_EQ(order(1, 0, 1, 4, true), order(1, 0, 1, 4, true));
  EXPECT_EQ(order(1, 0, 1, 4, true), order(1, 0, 4, 1, true));  // ranks and accumulation are one
  EXPECT_EQ(order(1, 0, 2, 2, true), order(1, 0, 4, 1, true));
  EXPECT_NE(order(1, 0, 1, 4, true), order(1, 1, 1, 4, true));
  EXPECT_NE(order(1, 0, 1, 4, true), order(2, 0, 1, 4, true));
  EXPECT_EQ(order(1, 0, 1, 4, false), order(2, 1, 1, 4, false));
}

TEST(DurationBuckets, FixedLength) {
  const std::vector<std::int64_t> lengths = utterances(100);
  const DurationBuckets buckets(lengths, {.budget = 12000, .fixed_length = 3000});
  EXPECT_EQ(buckets.shapes(), (std::vector<BucketShape>{{3000, 4}}));
  EXPECT_EQ(buckets.plan(0).steps.size(), 25U);
  EXPECT_EQ(DurationBuckets(lengths, {.budget = 12000, .max_rows = 3, .fixed_length = 3000}).shapes()[0].rows, 3);
}

TEST(DurationBuckets, LengthsThatChange) {
  const std::vector<std::int64_t> lengths = utterances(300);
  std::vector<std::int64_t> faster;
  for (const std::int64_t length : lengths) faster.push_back(length * 10 / 11);
  const DurationBuckets buckets(lengths, {.budget = 12000, .world = 2});
  expect_every_sample_once(buckets.plan(3, faster), buckets, faster);
  faster[5] = 100000;
  EXPECT_THROW(buckets.plan(3, faster), Error);
}

TEST(DurationBuckets, MultiplesAndManyLengths) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 1; i <= 20000; ++i) lengths.push_back(i);  // more lengths than are tried one by one
  const DurationBuckets buckets(lengths, {.budget = 100000, .buckets = 4, .multiple = 8});
  ASSERT_EQ(buckets.shapes().size(), 4U);
  for (std::size_t b = 0; b < 4; ++b) {
    EXPECT_EQ(buckets.shapes()[b].length % 8, 0);
    EXPECT_NEAR(static_cast<double>(buckets.shapes()[b].length), 5000.0 * static_cast<double>(b + 1), 100);
  }
  EXPECT_EQ(buckets.shapes().back().length, 20000);
}

TEST(DurationBuckets, RefusesWhatDoesNotFit) {
  const std::vector<std::int64_t> lengths = {10, 5000};
  const auto failure = [&](std::span<const std::int64_t> given, const BucketOptions& options) -> std::string {
    try {
      DurationBuckets(given, options);
    } catch (const Error& error) {
      EXPECT_NE(error.status(), Status::kInternal);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(failure(lengths, {.budget = 4000}),
              HasSubstr("sample 1 is 5000 long, over the budget of a micro-batch of 4000"));
  EXPECT_THAT(failure(lengths, {.budget = 4000, .fixed_length = 3000}), HasSubstr("over the fixed length of 3000"));
  EXPECT_THAT(failure({}, {.budget = 4000}), HasSubstr("no samples"));
  EXPECT_THAT(failure(lengths, {}), HasSubstr("budget of a micro-batch is 0"));
  EXPECT_THAT(failure(lengths, {.budget = 9000, .world = 0}), HasSubstr("0 ranks"));
}

}  // namespace
}  // namespace convoy
