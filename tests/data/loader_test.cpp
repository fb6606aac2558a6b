#include "data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "random_data.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

RowOptions rows_of(std::int64_t length, RowMode mode) {
  RowOptions options;
  options.row_length = length;
  options.mode = mode;
  return options;
}

LoaderOptions layout(std::int64_t rows, std::int64_t accumulation, std::int64_t world, std::int64_t epochs = 1) {
  LoaderOptions options;
  options.rows = rows;
  options.accumulation = accumulation;
  options.world = world;
  options.epochs = epochs;
  options.seed = 11;
  return options;
}

bool equal(const Batch& a, const Batch& b) {
  return a.input_ids == b.input_ids && a.targets == b.targets && a.positions == b.positions &&
         a.seq_start == b.seq_start && a.token_keys == b.token_keys && a.samples == b.samples &&
         a.target_count == b.target_count && a.token_count == b.token_count;
}

// A run of one epoch or more: the micro-batches of every step in global order, from all ranks.
struct Record {
  std::vector<std::vector<Batch>> steps;
  std::vector<Step> heads;  // of rank 0
};

Record run(const std::shared_ptr<const TokenData>& data, const RowOptions& rows, LoaderOptions options,
           const Cursor& start = {}, std::int64_t most_steps = 1 << 30) {
  Record result;
  for (std::int64_t rank = 0; rank < options.world; ++rank) {
    options.rank = rank;
    Loader loader(data, all_documents(data->documents()), rows, options, start);
    for (std::size_t s = 0; static_cast<std::int64_t>(s) < most_steps; ++s) {
      std::optional<Step> step = loader.next();
      if (!step) break;
      if (rank == 0) {
        result.steps.emplace_back();
        result.heads.push_back(*step);
      }
      EXPECT_EQ(step->first_micro_batch, rank * options.accumulation);
      EXPECT_EQ(step->next, result.heads[s].next);
      EXPECT_EQ(step->global_targets, result.heads[s].global_targets);
      for (Batch& batch : step->micro_batches) result.steps[s].push_back(std::move(batch));
    }
  }
  return result;
}

class Layouts : public ::testing::TestWithParam<std::tuple<RowMode, bool>> {};

// Every token of every document once per epoch, whatever the layout; counts agree; ranks together make one global
// batch.
TEST_P(Layouts, EverySampleOncePerEpoch) {
  const auto [mode, prefetch] = GetParam();
  const std::vector<EncodedSample> samples = random_samples(3, 83, 40);
  const auto data = data_of(samples);
  for (const auto& [micro_rows, accumulation, world] :
       std::vector<std::tuple<int, int, int>>{{1, 1, 1}, {2, 1, 4}, {3, 2, 2}, {1, 8, 1}, {5, 1, 3}, {64, 2, 2}}) {
    LoaderOptions options = layout(micro_rows, accumulation, world, 2);
    options.prefetch = prefetch ? 2 : 0;
    const Record all = run(data, rows_of(24, mode), options);
    std::map<std::int64_t, std::multiset<std::int32_t>> seen;  // epoch to targets
    std::map<std::int64_t, std::set<std::int64_t>> documents;
    std::int64_t samples_seen = 0;
    for (std::size_t s = 0; s < all.steps.size(); ++s) {
      const Step& head = all.heads[s];
      ASSERT_EQ(static_cast<std::int64_t>(all.steps[s].size()), accumulation * world);
      std::int64_t targets = 0, tokens = 0;
      for (const Batch& batch : all.steps[s]) {
        ASSERT_EQ(batch.rows, micro_rows);
        ASSERT_EQ(batch.input_ids.size(), static_cast<std::size_t>(micro_rows) * 24);
        for (const std::int32_t target : batch.targets) {
          if (target >= 0) seen[head.epoch].insert(target);
        }
        documents[head.epoch].insert(batch.samples.begin(), batch.samples.end());
        targets += batch.target_count;
        tokens += batch.token_count;
      }
      ASSERT_EQ(targets, head.global_targets);
      ASSERT_EQ(tokens, head.global_tokens);
      samples_seen += head.global_samples;
      ASSERT_EQ(head.next.seen_samples, samples_seen);
    }
    std::multiset<std::int32_t> expected;
    for (const EncodedSample& sample : samples) {
      for (std::size_t i = 1; i < sample.ids.size(); ++i) {
        if (sample.trained[i] != 0) expected.insert(sample.ids[i]);
      }
    }
    ASSERT_EQ(seen.size(), 2u);
    EXPECT_EQ(seen[0], expected);
    EXPECT_EQ(seen[1], expected);
    EXPECT_EQ(documents[0].size(), samples.size());
    EXPECT_EQ(samples_seen, 2 * data->documents());
    Loader loader(data, all_documents(data->documents()), rows_of(24, mode), options);
    EXPECT_EQ(static_cast<std::int64_t>(all.steps.size()), loader.total_steps(2));
    EXPECT_EQ(loader.steps_in_epoch(0) + loader.steps_in_epoch(1), loader.total_steps(2));
  }
}

// The same global micro-batches for every (world, accumulation) of equal product.
TEST_P(Layouts, LayoutDoesNotChangeTheBatches) {
  const auto [mode, prefetch] = GetParam();
  const auto data = data_of(random_samples(4, 50, 30));
  LoaderOptions options = layout(2, 4, 1);
  options.prefetch = prefetch ? 3 : 0;
  const Record one = run(data, rows_of(20, mode), options);
  for (const std::int64_t world : {2, 4}) {
    options.world = world;
    options.accumulation = 4 / world;
    const Record other = run(data, rows_of(20, mode), options);
    ASSERT_EQ(other.steps.size(), one.steps.size());
    for (std::size_t s = 0; s < one.steps.size(); ++s) {
      for (std::size_t b = 0; b < 4; ++b) ASSERT_TRUE(equal(one.steps[s][b], other.steps[s][b]));
    }
  }
}

// From any cursor, also in another layout, a run goes on as if it had not been stopped.
TEST_P(Layouts, ResumeEqualsUninterrupted) {
  const auto [mode, prefetch] = GetParam();
  const auto data = data_of(random_samples(5, 40, 30));
  LoaderOptions options = layout(1, 2, 2, 3);
  options.prefetch = prefetch ? 2 : 0;
  const RowOptions rows = rows_of(20, mode);
  const Record whole = run(data, rows, options);
  for (std::size_t stop = 0; stop < whole.steps.size(); stop += 3) {
    LoaderOptions resumed = options;
    resumed.world = stop % 2 == 0 ? 4 : 1;
    resumed.accumulation = 4 / resumed.world;
    const Record rest = run(data, rows, resumed, whole.heads[stop].next);
    ASSERT_EQ(rest.steps.size(), whole.steps.size() - stop - 1);
    for (std::size_t s = 0; s < rest.steps.size(); ++s) {
      ASSERT_EQ(rest.heads[s].next, whole.heads[stop + 1 + s].next);
      ASSERT_EQ(rest.heads[s].index, whole.heads[stop + 1 + s].index);
      for (std::size_t b = 0; b < 4; ++b) ASSERT_TRUE(equal(rest.steps[s][b], whole.steps[stop + 1 + s][b]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Layouts,
                         ::testing::Combine(::testing::Values(RowMode::kPack, RowMode::kPad, RowMode::kConcat),
                                            ::testing::Bool()));

// A run that goes on with another global batch still sees every row of the epoch once.
TEST(Loader, ResumeWithAnotherGlobalBatch) {
  const auto data = data_of(random_samples(6, 61, 20));
  const RowOptions rows = rows_of(20, RowMode::kPad);
  const Record first = run(data, rows, layout(3, 1, 2), {}, 4);
  const Record rest = run(data, rows, layout(5, 1, 1), first.heads.back().next);
  std::multiset<std::int64_t> seen;
  for (const Record* part : {&first, &rest}) {
    for (const auto& step : part->steps) {
      for (const Batch& batch : step) seen.insert(batch.samples.begin(), batch.samples.end());
    }
  }
  EXPECT_EQ(seen.size(), 61u);
  EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), 61u);
}

std::vector<std::int64_t> order(const std::shared_ptr<const TokenData>& data, const LoaderOptions& options,
                                std::int64_t epoch) {
  std::vector<std::int64_t> samples;
  LoaderOptions until = options;
  until.epochs = epoch + 1;
  for (const auto& step :
       run(data, rows_of(40, RowMode::kPad), until, {.epoch = epoch, .next_row = 0, .seen_samples = 0}).steps) {
    for (const Batch& batch : step) samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
  }
  return samples;
}

TEST(Loader, OrderDependsOnSeedAndEpochAlone) {
  const auto data = data_of(random_samples(7, 64, 30));
  const LoaderOptions options = layout(2, 1, 2);
  LoaderOptions other_seed = options;
  other_seed.seed = 12;
  EXPECT_EQ(order(data, options, 0), order(data, layout(8, 1, 1), 0));
  EXPECT_EQ(order(data, options, 3), order(data, layout(1, 3, 1), 3));
  EXPECT_NE(order(data, options, 0), order(data, options, 1));
  EXPECT_NE(order(data, options, 0), order(data, other_seed, 0));
}

TEST(Loader, EvaluationWalksInOrderAndToTheEnd) {
  const auto data = data_of(random_samples(8, 33, 30));
  LoaderOptions options = layout(4, 1, 2, 7);
  options.drop_last = true;
  std::vector<std::int64_t> samples;
  for (const auto& step : run(data, rows_of(40, RowMode::kPad), evaluation_options(options)).steps) {
    for (const Batch& batch : step) samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
  }
  ASSERT_EQ(samples.size(), 33u);
  EXPECT_TRUE(std::is_sorted(samples.begin(), samples.end()));
}

TEST(Loader, DropLast) {
  const auto data = data_of(random_samples(9, 33, 30));
  LoaderOptions options = layout(4, 1, 2, 2);
  options.drop_last = true;
  const Record all = run(data, rows_of(40, RowMode::kPad), options);
  ASSERT_EQ(all.steps.size(), 8u);
  EXPECT_TRUE(all.heads[3].ends_epoch);
  EXPECT_EQ(all.heads[3].next, (Cursor{.epoch = 1, .next_row = 0, .seen_samples = 32}));
  Loader loader(data, all_documents(33), rows_of(40, RowMode::kPad), options);
  EXPECT_EQ(loader.steps_in_epoch(5), 4);
  EXPECT_EQ(loader.report().dropped_rows, 1);
  EXPECT_THAT(loader.report().text(), HasSubstr("33 rows"));
  EXPECT_THAT(loader.report().text(), HasSubstr("1 rows of the last step dropped"));
}

TEST(Loader, EmptyRowsFillTheLastStep) {
  const auto data = data_of(random_samples(10, 3, 30));
  const Record all = run(data, rows_of(40, RowMode::kPad), layout(2, 1, 4));
  ASSERT_EQ(all.steps.size(), 1u);
  EXPECT_EQ(all.steps[0][1].samples.size(), 1u);
  for (const std::size_t b : {2u, 3u}) {
    const Batch& batch = all.steps[0][b];
    EXPECT_EQ(batch.target_count, 0);
    EXPECT_EQ(batch.token_count, 0);
    EXPECT_TRUE(std::all_of(batch.targets.begin(), batch.targets.end(), [](std::int32_t t) { return t == -1; }));
  }
}

TEST(Loader, KeysOfDropoutStayWithTheToken) {
  const auto data = data_of(random_samples(11, 20, 30));
  std::map<std::int32_t, std::uint64_t> keys;
  for (const RowMode mode : {RowMode::kPad, RowMode::kPack, RowMode::kConcat}) {
    for (const auto& step : run(data, rows_of(32, mode), layout(2, 1, mode == RowMode::kPad ? 2 : 1)).steps) {
      for (const Batch& batch : step) {
        for (std::size_t i = 0; i < batch.input_ids.size(); ++i) {
          if (batch.token_keys[i] == 0) continue;
          const auto known = keys.emplace(batch.input_ids[i], batch.token_keys[i]).first;
          ASSERT_EQ(known->second, batch.token_keys[i]);
        }
      }
    }
  }
  std::set<std::uint64_t> distinct;
  for (const auto& [id, key] : keys) distinct.insert(key);
  EXPECT_EQ(distinct.size(), keys.size());
  EXPECT_NE(dropout_key(0, 1, 2), dropout_key(1, 1, 2));
}

TEST(Loader, StopsCleanlyAtAnyTime) {
  const auto data = data_of(random_samples(12, 200, 30));
  for (int taken = 0; taken < 5; ++taken) {
    LoaderOptions options = layout(1, 1, 1, 0);
    options.prefetch = 3;
    Loader loader(data, all_documents(200), rows_of(40, RowMode::kPad), options);
    for (int i = 0; i < taken; ++i) ASSERT_TRUE(loader.next().has_value());
  }
  Loader once(data, all_documents(200), rows_of(40, RowMode::kPad), layout(200, 1, 1));
  EXPECT_TRUE(once.next().has_value());
  EXPECT_FALSE(once.next().has_value());
  EXPECT_FALSE(once.next().has_value());
}

// With drop_last a later epoch can pack into too few rows; the thread's error must reach the caller, every time.
TEST(Loader, ErrorsOfTheThreadReachTheCaller) {
  const auto data = data_of(random_samples(13, 60, 30));
  RowOptions rows = rows_of(40, RowMode::kPack);
  rows.window = 2;
  LoaderOptions options = layout(1, 1, 1, 0);
  options.drop_last = true;
  std::int64_t least = 1 << 30, first = 0;
  {
    Loader probe(data, all_documents(60), rows, options);
    first = probe.rows_in_epoch(0);
    for (std::int64_t epoch = 0; epoch < 40; ++epoch) least = std::min(least, probe.rows_in_epoch(epoch));
  }
  ASSERT_LT(least, first) << "the data must pack differently for this test to mean something";
  options.rows = first;
  Loader loader(data, all_documents(60), rows, options);
  std::string message;
  for (int i = 0; i < 50 && message.empty(); ++i) {
    try {
      ASSERT_TRUE(loader.next().has_value());
    } catch (const Error& failure) {
      message = failure.what();
    }
  }
  EXPECT_THAT(message, HasSubstr("fewer than the"));
  EXPECT_THROW(loader.next(), Error);
}

TEST(Loader, BadOptionsAndCursors) {
  const auto data = data_of(random_samples(14, 10, 30));
  const auto error = [&](const LoaderOptions& options, const Cursor& start = {}) {
    try {
      Loader loader(data, all_documents(10), rows_of(40, RowMode::kPad), options, start);
    } catch (const Error& failure) {
      EXPECT_EQ(failure.status(), Status::kUsage);
      return std::string(failure.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error(layout(0, 1, 1)), HasSubstr("0 rows per micro-batch are not positive"));
  LoaderOptions rank = layout(1, 1, 2);
  rank.rank = 2;
  EXPECT_THAT(error(rank), HasSubstr("rank 2 is not in a world of 2"));
  EXPECT_THAT(error(layout(1 << 30, 1, 1)), HasSubstr("2^31 tokens or more"));
  LoaderOptions drop = layout(11, 1, 1);
  drop.drop_last = true;
  EXPECT_THAT(error(drop), HasSubstr("the data make 10 rows, but a step takes 11"));
  EXPECT_THAT(error(layout(1, 1, 1), {.epoch = 0, .next_row = 12, .seen_samples = 0}),
              HasSubstr("stood at row 12 of epoch 0, which has 10 rows"));
  EXPECT_THAT(error(layout(1, 1, 1), {.epoch = -1, .next_row = 0, .seen_samples = 0}), HasSubstr("negative"));
  RowOptions short_rows = rows_of(40, RowMode::kPad);
  EXPECT_THROW(Loader(data, {}, short_rows, layout(1, 1, 1)), Error);
}

}  // namespace
}  // namespace convoy
