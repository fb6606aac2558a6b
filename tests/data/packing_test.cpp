#include "data/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "data/batch.h"
#include "random_data.h"

namespace convoy {
namespace {

// The plan's first rows, and empty ones behind them.
Batch batch_of(const TokenData& data, const RowPlan& plan, std::int64_t epoch, std::int64_t rows, TokenId pad) {
  return make_batch(data, plan, epoch, {0, std::min(rows, plan.rows()), rows, plan.row_length}, pad);
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;

EncodedSample trained(int document, int length) {
  EncodedSample sample;
  for (int i = 0; i < length; ++i) sample.append(document * 1000 + i, true);
  return sample;
}

RowOptions rows_of(std::int64_t length, RowMode mode, Overlong overlong = Overlong::kSplit) {
  RowOptions options;
  options.row_length = length;
  options.mode = mode;
  options.overlong = overlong;
  return options;
}

RowPlan plan(const TokenData& data, const RowOptions& options) {
  DataReport report;
  return plan_rows(data, usable_documents(data, all_documents(data.documents()), options, report), options);
}

std::vector<std::vector<Segment>> rows(const RowPlan& plan) {
  std::vector<std::vector<Segment>> all;
  for (std::int64_t r = 0; r < plan.rows(); ++r) all.emplace_back(plan.row(r).begin(), plan.row(r).end());
  return all;
}

TEST(Split, IsDisjointCompleteAndDeterministic) {
  for (const std::int64_t n : {2, 3, 10, 1001}) {
    const Split split = split_documents(n, {.validation_fraction = 0.1, .validation_count = 0, .seed = 3});
    std::set<DocumentId> all(split.train.begin(), split.train.end());
    all.insert(split.validation.begin(), split.validation.end());
    EXPECT_EQ(static_cast<std::int64_t>(all.size()), n);
    EXPECT_EQ(static_cast<std::int64_t>(split.train.size() + split.validation.size()), n);
    EXPECT_EQ(static_cast<std::int64_t>(split.validation.size()), std::max<std::int64_t>(1, (n + 5) / 10));
    EXPECT_EQ(split_documents(n, {.validation_fraction = 0.1, .validation_count = 0, .seed = 3}).validation,
              split.validation);
  }
  const auto count = [](std::uint64_t seed) {
    return split_documents(1000, {.validation_fraction = 0, .validation_count = 50, .seed = seed}).validation;
  };
  EXPECT_EQ(count(1).size(), 50u);
  EXPECT_NE(count(1), count(2));
  EXPECT_EQ(split_documents(5, {}).train, all_documents(5));
  EXPECT_THROW(split_documents(5, {.validation_fraction = 1, .validation_count = 0, .seed = 0}), Error);
  EXPECT_THROW(split_documents(5, {.validation_fraction = 0.1, .validation_count = 1, .seed = 0}), Error);
  EXPECT_THROW(split_documents(5, {.validation_fraction = 0, .validation_count = 5, .seed = 0}), Error);
  EXPECT_THROW(split_documents(1, {.validation_fraction = 0.01, .validation_count = 0, .seed = 0}), Error);
}

TEST(Packing, BestFit) {
  const auto data = data_of({trained(0, 6), trained(1, 5), trained(2, 3), trained(3, 2), trained(4, 4)});
  EXPECT_THAT(rows(plan(*data, rows_of(8, RowMode::kPack))),
              ElementsAre(ElementsAre(Segment{0, 0, 6}, Segment{3, 0, 2}),
                          ElementsAre(Segment{1, 0, 5}, Segment{2, 0, 3}), ElementsAre(Segment{4, 0, 4})));
  RowOptions narrow = rows_of(8, RowMode::kPack);
  narrow.window = 1;  // the row of document 0 is closed when that of 1 opens
  EXPECT_THAT(rows(plan(*data, narrow)),
              ElementsAre(ElementsAre(Segment{0, 0, 6}), ElementsAre(Segment{1, 0, 5}, Segment{2, 0, 3}),
                          ElementsAre(Segment{3, 0, 2}, Segment{4, 0, 4})));
}

TEST(Packing, PadAndConcat) {
  const auto data = data_of({trained(0, 3), trained(1, 6), trained(2, 2)});
  EXPECT_THAT(rows(plan(*data, rows_of(4, RowMode::kPad))),
              ElementsAre(ElementsAre(Segment{0, 0, 3}), ElementsAre(Segment{1, 0, 4}), ElementsAre(Segment{1, 4, 1}),
                          ElementsAre(Segment{2, 0, 2})));
  EXPECT_THAT(rows(plan(*data, rows_of(4, RowMode::kConcat))),
              ElementsAre(ElementsAre(Segment{0, 0, 3}, Segment{1, 0, 1}), ElementsAre(Segment{1, 1, 4}),
                          ElementsAre(Segment{1, 5, 1}, Segment{2, 0, 2})));
  EXPECT_THAT(rows(plan(*data, rows_of(4, RowMode::kPad, Overlong::kTruncate)))[1], ElementsAre(Segment{1, 0, 4}));
  EXPECT_EQ(rows(plan(*data, rows_of(4, RowMode::kPad, Overlong::kDrop))).size(), 2u);
}

TEST(Packing, WhatIsCutIsCounted) {
  EncodedSample late = trained(3, 10);
  std::fill(late.trained.begin(), late.trained.begin() + 9, std::uint8_t{0});
  const auto data = data_of({trained(0, 3), trained(1, 9), trained(2, 5), late});
  const auto counted = [&](Overlong overlong) {
    DataReport report;
    usable_documents(*data, all_documents(4), rows_of(4, RowMode::kPack, overlong), report);
    return report;
  };
  EXPECT_EQ(counted(Overlong::kSplit).split, 2);  // 5 tokens still are 4 inputs and the target of the last
  EXPECT_EQ(counted(Overlong::kSplit).pieces_without_targets, 2);
  EXPECT_EQ(counted(Overlong::kTruncate).truncated, 2);
  EXPECT_EQ(counted(Overlong::kTruncate).truncated_tokens, 5 + 1);
  EXPECT_EQ(counted(Overlong::kTruncate).skipped, (std::map<std::string, std::int64_t>{{"no target", 1}}));
  EXPECT_EQ(counted(Overlong::kDrop).skipped, (std::map<std::string, std::int64_t>{{"too long", 3}}));
  EXPECT_THAT(counted(Overlong::kDrop).examples[0].reason, HasSubstr("9 tokens in rows of 4"));
}

TEST(Packing, BadOptions) {
  const auto data = data_of({trained(0, 3)});
  const auto error = [&](const RowOptions& options) {
    try {
      plan(*data, options);
    } catch (const Error& failure) {
      return std::string(failure.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error(rows_of(1, RowMode::kPack)), HasSubstr("a row length of 1 tokens"));
  EXPECT_THAT(error(rows_of(4, RowMode::kConcat, Overlong::kDrop)), HasSubstr("row mode concat cannot drop"));
  RowOptions cross = rows_of(4, RowMode::kPack);
  cross.cross_document_attention = true;
  EXPECT_THAT(error(cross), HasSubstr("no meaning in row mode pack"));
  RowOptions window = rows_of(4, RowMode::kPack);
  window.window = 0;
  EXPECT_THAT(error(window), HasSubstr("packing window of 0"));
  EXPECT_EQ(parse_row_mode("concat"), RowMode::kConcat);
  EXPECT_THROW(parse_overlong("spilt"), Error);
}

TEST(Packing, FillsRowsWell) {
  const auto data = data_of(random_samples(1, 5000, 400));
  DataReport report;
  report_rows(plan(*data, rows_of(1024, RowMode::kPack)), report);
  EXPECT_GT(report.fill_ratio, 0.97);
  EXPECT_LE(report.fill_ratio, 1.0);
}

TEST(Batch, ByHand) {
  EncodedSample second = trained(1, 3);
  second.trained[1] = 0;
  const auto data = data_of({trained(0, 7), second});
  const RowPlan packed = plan(*data, rows_of(4, RowMode::kPack));
  const Batch batch = batch_of(*data, packed, 2, 4, 9);
  // Document 0 becomes [0, 4) and [4, 6), whose last targets are tokens 4 and 6; document 1 does not fit beside them.
  EXPECT_THAT(batch.input_ids, ElementsAre(0, 1, 2, 3, 4, 5, 9, 9, 1000, 1001, 1002, 9, 9, 9, 9, 9));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, 4, 5, 6, -1, -1, -1, 1002, -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.seq_start, ElementsAre(0, 0, 0, 0, 4, 4, 6, 7, 8, 8, 8, 11, 12, 13, 14, 15));
  EXPECT_THAT(batch.samples, ElementsAre(0, 0, 1));
  EXPECT_EQ(batch.target_count, 7);
  EXPECT_EQ(batch.token_count, 9);
  EXPECT_EQ(batch.token_keys[4], dropout_key(2, 0, 4));
  EXPECT_EQ(batch.token_keys[15], 0u);
}

TEST(Batch, CrossDocument) {
  const auto data = data_of({trained(0, 3), trained(1, 4)});
  RowOptions options = rows_of(4, RowMode::kConcat);
  options.cross_document_attention = true;
  const Batch batch = batch_of(*data, plan(*data, options), 0, 2, 9);
  EXPECT_THAT(batch.input_ids, ElementsAre(0, 1, 2, 1000, 1001, 1002, 1003, 9));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 1000, 1001, 1002, 1003, -1, -1));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 0));
  EXPECT_THAT(batch.seq_start, ElementsAre(0, 0, 0, 0, 4, 4, 4, 7));
  EXPECT_EQ(batch.target_count, 6);
}

// For random documents and every mode: no segment crosses documents, every target is the next token of the document and
// marked, counts agree with the plan, and together every target of the data occurs exactly once.
TEST(Batch, Properties) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const std::vector<EncodedSample> samples = random_samples(seed, 60, 70);
    const auto data = data_of(samples);
    for (const std::int64_t length : {5, 16, 64, 100}) {
      for (const RowMode mode : {RowMode::kPack, RowMode::kPad, RowMode::kConcat}) {
        const RowPlan all = plan(*data, rows_of(length, mode));
        const Batch batch = batch_of(*data, all, 0, all.rows(), 0);
        std::multiset<std::int32_t> seen;
        std::set<std::uint64_t> keys;
        std::int64_t tokens = 0;
        for (std::size_t i = 0; i < batch.input_ids.size(); ++i) {
          const auto start = static_cast<std::size_t>(batch.seq_start[i]);
          ASSERT_LE(start, i);
          ASSERT_EQ(start / static_cast<std::size_t>(length), i / static_cast<std::size_t>(length));
          ASSERT_EQ(batch.positions[i], static_cast<std::int32_t>(i - start));
          // Within a segment ids run on from its first.
          ASSERT_EQ(batch.input_ids[i], batch.input_ids[start] + batch.positions[i]);
          if (batch.token_keys[i] != 0) {
            ++tokens;
            ASSERT_TRUE(keys.insert(batch.token_keys[i]).second);
            ASSERT_EQ(batch.token_keys[i], dropout_key(0, batch.input_ids[i] / 1000, batch.input_ids[i] % 1000));
          }
          if (batch.targets[i] < 0) continue;
          seen.insert(batch.targets[i]);
          ASSERT_EQ(batch.targets[i], batch.input_ids[i] + 1);
        }
        std::multiset<std::int32_t> expected;
        for (const EncodedSample& sample : samples) {
          for (std::size_t i = 1; i < sample.ids.size(); ++i) {
            if (sample.trained[i] != 0) expected.insert(sample.ids[i]);
          }
        }
        ASSERT_EQ(seen, expected);
        ASSERT_EQ(batch.target_count, static_cast<std::int64_t>(expected.size()));
        ASSERT_EQ(batch.token_count, tokens);
        std::int64_t seen_samples = 0;
        for (const std::int32_t n : all.row_samples) seen_samples += n;
        ASSERT_EQ(seen_samples, data->documents());
      }
    }
  }
}

TEST(Batch, TruncatedRowsEndWithoutTarget) {
  const std::vector<EncodedSample> samples = random_samples(5, 60, 70);
  const auto data = data_of(samples);
  const RowPlan all = plan(*data, rows_of(16, RowMode::kPad, Overlong::kTruncate));
  const Batch batch = batch_of(*data, all, 0, all.rows(), 0);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    if (i % 16 == 15) {
      EXPECT_EQ(batch.targets[i], -1);
    }
    if (batch.targets[i] >= 0) ++count;
  }
  EXPECT_EQ(count, batch.target_count);
  EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace convoy
