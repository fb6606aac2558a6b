// What follows from the shape of a run alone.
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "plan/program_set.h"

namespace convoy {

std::size_t tree_slots(std::int64_t count) {
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(count, 1))));
}

GraphOptions graph_options(const TrainShape& shape, GraphKind kind, std::int64_t rows) {
  GraphOptions options;
  options.kind = kind;
  options.tokens = rows * shape.seq;
  options.table_length = shape.seq;
  options.dtype = shape.dtype;
  options.seed = shape.seed;
  options.loss = shape.loss;
  options.items = rows / shape.rows_per_item;
  options.auxiliary_loss = shape.auxiliary_weight != 0;
  options.audio_windows = rows * shape.audio_windows;
  options.audio_frames = shape.audio_frames;
  return options;
}

std::int64_t TrainShape::reduce_period() const {
  if (zero.shards_gradients()) return 1;
  if (!deterministic) return accumulation;
  return std::int64_t{1} << std::countr_zero(static_cast<std::uint64_t>(std::max<std::int64_t>(accumulation, 1)));
}

std::int64_t TrainShape::global_micro_batch(std::int64_t index) const {
  const std::int64_t period = reduce_period();
  const std::int64_t round = index / period;
  return (round * zero.world + zero.rank) * period + index % period;
}

OwnedRange owned_range(const TrainShape& shape, std::int64_t numel) {
  if (!shape.zero.shards_state()) return {0, numel};
  const ShardCut cut = zero_cut(numel, shape.zero.world);
  return {cut.begin(shape.zero.rank), cut.length(shape.zero.rank)};
}

std::string owned_name(const TrainShape& shape, const std::string& parameter) {
  return shape.zero.shards_state() ? shard_name(parameter) : parameter;
}

std::string error_name(const std::string& parameter) {
  return "compression_error." + parameter;
}

std::string moment_name(int moment, const std::string& parameter) {
  return (moment == 0 ? "exp_avg." : "exp_avg_sq.") + parameter;
}

TrainShape TrainShape::of_bucket(std::size_t bucket) const {
  check(bucket < buckets(), "a bucket that the run has not");
  TrainShape made = *this;
  made.shorter.clear();
  if (bucket == shorter.size()) return made;
  const BatchShape& batch = shorter[bucket];
  made.rows = batch.rows;
  made.seq = batch.seq;
  made.audio_windows = batch.audio_windows;
  made.audio_frames = batch.audio_frames;
  if (eval_rows > 0) made.eval_rows = batch.rows;
  made.loss.chunk_rows = std::min(made.loss.chunk_rows, made.tokens());
  return made;
}

}  // namespace convoy
