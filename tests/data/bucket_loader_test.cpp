// The loader with rows of several lengths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "data/loader.h"
#include "random_data.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

constexpr int kDocuments = 97;

// Documents of 2 … 40 tokens, bucketed by ten times their length.
class BucketLoader : public ::testing::Test {
 protected:
  BucketLoader() : data_(data_of(random_samples(5, kDocuments, 40))) {
    rows_.row_length = 40;
    rows_.mode = RowMode::kPad;
    auto buckets = std::make_shared<BucketRows>();
    buckets->shapes = {{100, 8}, {220, 4}, {400, 2}};
    buckets->row_length = {10, 22, 40};
    for (int d = 0; d < kDocuments; ++d) buckets->lengths.push_back(10 * data_->length(d));
    buckets_ = buckets;
  }
  LoaderOptions layout(std::int64_t accumulation, std::int64_t world, std::int64_t epochs = 1) const {
    LoaderOptions options;
    options.rows = 8;
    options.accumulation = accumulation;
    options.world = world;
    options.epochs = epochs;
    options.seed = 11;
    options.buckets = buckets_;
    return options;
  }
  std::unique_ptr<Loader> loader(const LoaderOptions& options, const Cursor& start = {}) const {
    return std::make_unique<Loader>(data_, all_documents(kDocuments), rows_, options, start);
  }
  // The micro-batches of all steps in global order.
  std::vector<std::vector<Batch>> run(LoaderOptions options, const Cursor& start = {}) const {
    std::vector<std::vector<Batch>> steps;
    for (std::int64_t rank = 0; rank < options.world; ++rank) {
      options.rank = rank;
      const auto one = loader(options, start);
      for (std::size_t s = 0; std::optional<Step> step = one->next(); ++s) {
        if (rank == 0) steps.emplace_back();
        for (Batch& batch : step->micro_batches) steps[s].push_back(std::move(batch));
      }
    }
    return steps;
  }
  static std::vector<std::vector<std::int64_t>> samples(const std::vector<std::vector<Batch>>& steps) {
    std::vector<std::vector<std::int64_t>> all;
    for (const auto& step : steps) {
      for (const Batch& batch : step) {
        if (!batch.samples.empty()) all.push_back(batch.samples);
      }
    }
    return all;
  }

  std::shared_ptr<const TokenData> data_;
  RowOptions rows_;
  std::shared_ptr<const BucketRows> buckets_;
};

TEST_F(BucketLoader, EverySampleOnceInStepsOfOneShape) {
  for (const auto& [accumulation, world] : std::vector<std::pair<int, int>>{{1, 1}, {3, 1}, {2, 2}, {1, 4}, {30, 4}}) {
    const LoaderOptions options = layout(accumulation, world, 2);
    const auto steps = run(options);
    std::map<std::int64_t, std::multiset<std::int64_t>> seen;  // by epoch
    std::set<std::int32_t> used;
    for (const auto& step : steps) {
      ASSERT_EQ(static_cast<std::int64_t>(step.size()), accumulation * world);
      for (const Batch& batch : step) {
        ASSERT_EQ(batch.bucket, step.front().bucket) << "ranks with unequal work";
        const auto bucket = static_cast<std::size_t>(batch.bucket);
        ASSERT_EQ(batch.rows, buckets_->shapes[bucket].rows);
        ASSERT_EQ(batch.seq, buckets_->row_length[bucket]);
        ASSERT_EQ(static_cast<std::int64_t>(batch.input_ids.size()), batch.tokens());
        seen[batch.epoch].insert(batch.samples.begin(), batch.samples.end());
        used.insert(batch.bucket);
        // A row holds its document from the first token to the last.
        for (std::size_t r = 0; r < batch.samples.size(); ++r) {
          const std::int64_t document = batch.samples[r], length = data_->length(document);
          ASSERT_LE(length, batch.seq);
          for (std::int64_t t = 0; t < length; ++t)
            ASSERT_EQ(batch.input_ids[r * static_cast<std::size_t>(batch.seq) + static_cast<std::size_t>(t)],
                      document * 1000 + t);
        }
      }
    }
    std::multiset<std::int64_t> once;
    for (std::int64_t d = 0; d < kDocuments; ++d) once.insert(d);
    EXPECT_EQ(seen[0], once);
    EXPECT_EQ(seen[1], once);
    if (accumulation * world == 1) {
      EXPECT_EQ(used.size(), 3U);
    }
    const auto one = loader(options);
    EXPECT_EQ(one->total_steps(2), static_cast<std::int64_t>(steps.size()));
    EXPECT_EQ(one->rows_in_epoch(0), kDocuments);
    const auto of_buckets = one->steps_of_buckets(0);
    EXPECT_EQ(of_buckets[0] + of_buckets[1] + of_buckets[2], one->steps_in_epoch(0));
  }
}

TEST_F(BucketLoader, RanksAndAccumulationAreOne) {
  const auto one = run(layout(4, 1));
  for (const std::int64_t period : {0, 1}) {
    for (const std::int64_t world : {2, 4}) {
      LoaderOptions options = layout(4 / world, world);
      options.period = period;
      const auto many = run(options);
      ASSERT_EQ(many.size(), one.size());
      for (std::size_t s = 0; s < one.size(); ++s) {
        for (std::int64_t rank = 0, at = 0; rank < world; ++rank) {
          options.rank = rank;
          for (std::int64_t i = 0; i < options.accumulation; ++i, ++at) {
            const Batch& mine = many[s][static_cast<std::size_t>(at)];
            const Batch& theirs = one[s][static_cast<std::size_t>(options.micro_batch(i))];
            EXPECT_EQ(mine.input_ids, theirs.input_ids);
            EXPECT_EQ(mine.token_keys, theirs.token_keys);
          }
        }
      }
    }
  }
}

TEST_F(BucketLoader, EpochsDifferAndSeedsToo) {
  LoaderOptions options = layout(1, 2, 2);
  const auto both = run(options);
  const std::size_t half = both.size() / 2;
  EXPECT_NE(samples({both.begin(), both.begin() + static_cast<std::ptrdiff_t>(half)}),
            samples({both.begin() + static_cast<std::ptrdiff_t>(half), both.end()}));
  options.seed = 12;
  EXPECT_NE(samples(run(options)), samples(both));
}

TEST_F(BucketLoader, GoesOnWhereItStopped) {
  const LoaderOptions options = layout(2, 1, 2);
  const auto whole = run(options);
  const auto first = loader(options);
  for (std::size_t s = 0; s + 1 < whole.size(); ++s) {
    const std::optional<Step> step = first->next();
    const auto rest = run(options, step->next);
    ASSERT_EQ(rest.size(), whole.size() - s - 1);
    EXPECT_EQ(samples(rest), samples({whole.begin() + static_cast<std::ptrdiff_t>(s) + 1, whole.end()}));
  }
  try {
    loader(options, {.epoch = 0, .next_row = 1, .seen_samples = 0});
    FAIL();
  } catch (const Error& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("no step begins"));
  }
}

TEST_F(BucketLoader, TheIncompleteStepCanBeDropped) {
  LoaderOptions options = layout(2, 2);
  options.drop_last = true;
  const auto steps = run(options);
  std::int64_t rows = 0;
  for (const auto& step : steps) {
    for (const Batch& batch : step) {
      EXPECT_EQ(static_cast<std::int64_t>(batch.samples.size()), batch.rows);
      rows += static_cast<std::int64_t>(batch.samples.size());
    }
  }
  const auto one = loader(options);
  EXPECT_EQ(one->rows_in_epoch(0), rows);
  EXPECT_EQ(one->report().dropped_rows, kDocuments - rows);
  options.accumulation = 100;
  EXPECT_THROW(loader(options), Error);
}

// An evaluation's micro-batches are the same on any number of ranks, and so is their order but for empty ones.
TEST_F(BucketLoader, EvaluationDoesNotDependOnRanks) {
  const auto one = run(evaluation_options(layout(1, 1, 3)));
  std::multiset<std::int64_t> seen;
  for (const auto& batch : samples(one)) seen.insert(batch.begin(), batch.end());
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kDocuments));
  for (const std::int64_t world : {2, 3, 8}) {
    const auto many = run(evaluation_options(layout(1, world, 3)));
    EXPECT_EQ(samples(many), samples(one)) << world;
    for (const auto& step : many) {
      for (const Batch& batch : step) EXPECT_EQ(batch.bucket, step.front().bucket);
    }
  }
}

}  // namespace
}  // namespace convoy
