// Micro-batches of fixed shape for one rank, in an order that depends on (seed, epoch) alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "data/duration_buckets.h"
#include "data/packing.h"
#include "data/report.h"
#include "data/split.h"
#include "data/token_data.h"

namespace convoy {

// One micro-batch: rows · seq tokens, row-major.
struct Batch {
  std::int32_t rows = 0, seq = 0;
  std::int32_t bucket = -1;  // of LoaderOptions::buckets; -1: there is but one shape
  std::int64_t epoch = 0;
  std::vector<TokenId> input_ids;         // padding: LoaderOptions::pad_id
  std::vector<std::int32_t> targets;      // the token to predict at this position, or -1
  std::vector<std::int32_t> positions;    // within the segment, from 0
  std::vector<std::int32_t> seq_start;    // index in [0, rows · seq) of the first token of the token's segment; a
                                          // padding token is a segment of its own
  std::vector<std::uint64_t> token_keys;  // dropout_key of the token; 0 for padding
  std::vector<std::int64_t> samples;      // the document of each segment, in order
  // Of a task, by row (for a choice by alternative within it): the last token of each, and a key that an item's
  // alternatives share; by row: the right class or alternative, or -1 in an empty row.
  std::vector<std::int32_t> head_rows, head_labels;
  std::vector<std::uint64_t> head_keys;
  // Models that hear; see BatchView. Made by LoaderOptions::complete.
  std::vector<float> audio_features;
  std::vector<std::int32_t> audio_rows, audio_lengths;
  std::int64_t target_count = 0;
  std::int64_t token_count = 0;  // without padding

  std::int64_t tokens() const { return std::int64_t{rows} * seq; }
};

// What keys the random numbers of a token: the same wherever the token lies, on every rank and in every packing.
std::uint64_t dropout_key(std::int64_t epoch, std::int64_t sample, std::int64_t position_in_sample);

// Where in the data a run stands. Counts rows and samples, not batches, so it means the same for every batch layout.
struct Cursor {
  std::int64_t epoch = 0;
  std::int64_t next_row = 0;      // of the epoch's rows
  std::int64_t seen_samples = 0;  // in all epochs
  friend bool operator==(const Cursor&, const Cursor&) = default;
};

// What one rank does in one optimizer step, and what it must know of the others.
struct Step {
  std::int64_t epoch = 0;
  std::int64_t index = 0;              // of the step within its epoch: next_row at its start / rows per step
  std::vector<Batch> micro_batches;    // this rank's `accumulation` ones
  std::int64_t first_micro_batch = 0;  // index of the first of them among the world · accumulation of the step
  std::int64_t global_targets = 0;     // of all ranks; what the loss is divided by
  std::int64_t global_tokens = 0;      // without padding
  std::int64_t global_samples = 0;     // documents that are seen for the first time in this epoch
  bool ends_epoch = false;
  Cursor next;  // where to go on after this step
};

// Rows of several lengths, one document in each (RowMode::kPad).
struct BucketRows {
  std::vector<BucketShape> shapes;       // by rising length
  std::vector<std::int64_t> row_length;  // tokens, by bucket
  std::vector<std::int64_t> lengths;     // of every document, in the shapes' unit
};

struct LoaderOptions {
  std::int64_t rows = 1;          // per micro-batch; with buckets, of the one with the most
  std::int64_t accumulation = 1;  // micro-batches per rank and step
  std::int64_t world = 1;         // data-parallel ranks
  std::int64_t rank = 0;
  // How many micro-batches in a row a rank takes before the next rank's turn; 0: all of its own (accumulation).
  std::int64_t period = 0;
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;     // false: an incomplete last step of an epoch is filled up with empty rows
  std::int64_t epochs = 0;    // stop after so many; 0: go on for ever
  std::int64_t prefetch = 2;  // steps made ahead by a thread; 0: made when asked for
  TokenId pad_id = 0;
  // Null: rows of one length. Else every step takes micro-batches of one of these shapes.
  std::shared_ptr<const BucketRows> buckets;
  // Micro-batches that the samples of a bucket fill together, the rest moving on to the next one; 0: a whole step's.
  std::int64_t bucket_group = 0;
  // Adds to a micro-batch what is not tokens; called in the thread that makes steps ahead.
  std::function<void(Batch&)> complete;

  std::int64_t rows_per_step() const { return rows * accumulation * world; }
  // Which of the world · accumulation micro-batches of a step is this rank's `index`-th one.
  std::int64_t micro_batch(std::int64_t index) const;
};

// Settings that walk through the data once, in order and to the end.
LoaderOptions evaluation_options(LoaderOptions options);

// With buckets the steps are those of DurationBuckets. Else a step takes the next rows_per_step() rows of the epoch as
// world · accumulation micro-batches, dealt to the ranks `period` at a time. So a step holds the same rows in the same
// micro-batches for every (world, accumulation) of equal product.
class Loader {
 public:
  // `documents` are visited each epoch. Throws a usage error for options out of range or a cursor that does not fit the
  // data, and a data error where no row can be made.
  Loader(std::shared_ptr<const TokenData> data, const std::vector<DocumentId>& documents, const RowOptions& rows,
         const LoaderOptions& options, const Cursor& start = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next step; none after the last epoch. Rethrows what went wrong while it was made.
  std::optional<Step> next();

  // Steps of an epoch. Packing depends on the order, so with RowMode::kPack epochs can differ by a little.
  std::int64_t steps_in_epoch(std::int64_t epoch);
  std::int64_t rows_in_epoch(std::int64_t epoch);
  // Of these, the steps of each bucket; all of them without buckets.
  std::vector<std::int64_t> steps_of_buckets(std::int64_t epoch);
  // Steps of `epochs` whole epochs from the first.
  std::int64_t total_steps(std::int64_t epochs);
  // Documents in use per epoch.
  std::int64_t samples_per_epoch() const;
  // The data's report, with what was left out here and the rows of the start's epoch.
  const DataReport& report() const;

 private:
  class Planner;
  class Maker;
  class Prefetcher;
  std::unique_ptr<Planner> planner_;
  std::unique_ptr<Maker> maker_;
  std::unique_ptr<Prefetcher> prefetcher_;
};

}  // namespace convoy
