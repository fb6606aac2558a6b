#include "data/batch.h"

#include <algorithm>

namespace convoy {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): a
// bijection.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ull;

std::uint64_t sample_key(std::int64_t epoch, std::int64_t sample) {
  return mix(mix(static_cast<std::uint64_t>(epoch) + kGolden) + static_cast<std::uint64_t>(sample) * kGolden);
}

std::uint64_t token_key(std::uint64_t sample_key, std::int64_t position) {
  return mix(sample_key + (static_cast<std::uint64_t>(position) + 1) * kGolden);
}

class BatchFiller {
 public:
  BatchFiller(const TokenData& data, const RowPlan& plan, std::int64_t epoch, Batch& batch)
      : data_(data), plan_(plan), epoch_(epoch), batch_(batch) {}

  void row(std::int64_t plan_row, std::int64_t batch_row) {
    const auto row_start = static_cast<std::size_t>(batch_row * plan_.row_length);
    std::size_t at = row_start;
    const std::uint64_t end = plan_.row_begin[static_cast<std::size_t>(plan_row) + 1];
    for (std::uint64_t i = plan_.row_begin[static_cast<std::size_t>(plan_row)]; i < end; ++i) {
      const std::size_t origin = plan_.cross_document ? row_start : at;
      segment(plan_.segments[i], at, origin);
      targets(i, at);
      at += plan_.segments[i].length;
    }
    batch_.target_count += plan_.row_targets[static_cast<std::size_t>(plan_row)];
    batch_.token_count += plan_.row_tokens[static_cast<std::size_t>(plan_row)];
  }

 private:
  void segment(const Segment& s, std::size_t at, std::size_t origin) {
    data_.copy(s.document, s.begin, s.length, batch_.input_ids.data() + at);
    const std::uint64_t key = sample_key(epoch_, s.document);
    for (std::size_t i = 0; i < s.length; ++i) {
      batch_.positions[at + i] = static_cast<std::int32_t>(at + i - origin);
      batch_.seq_start[at + i] = static_cast<std::int32_t>(origin);
      batch_.token_keys[at + i] = token_key(key, static_cast<std::int64_t>(s.begin + i));
    }
    batch_.samples.push_back(s.document);
  }

  // The target at a position is the token behind it, if that one is marked.
  void targets(std::uint64_t index, std::size_t at) {
    const Segment& s = plan_.segments[index];
    const std::int64_t length = data_.length(s.document);
    const std::int64_t begin = s.begin;
    const std::int64_t end = begin + s.length;
    const std::int64_t last = std::min(length, end + (plan_.continues ? 1 : 0));
    const std::span<const TokenSpan> spans = data_.trained(s.document);
    auto span =
        std::partition_point(spans.begin(), spans.end(), [&](const TokenSpan& t) { return t.end <= begin + 1; });
    for (; span != spans.end() && span->begin < last; ++span) {
      const std::int64_t from = std::max<std::int64_t>(span->begin, begin + 1);
      const std::int64_t to = std::min<std::int64_t>(span->end, last);
      if (from < to)
        data_.copy(s.document, from, to - from,
                   batch_.targets.data() + at + static_cast<std::size_t>(from - begin - 1));
    }
    if (plan_.cross_document && end == length && index + 1 < plan_.segments.size()) {
      const DocumentId following = plan_.segments[index + 1].document;
      if (data_.targets(following, 0, 1) > 0) data_.copy(following, 0, 1, batch_.targets.data() + at + s.length - 1);
    }
  }

  const TokenData& data_;
  const RowPlan& plan_;
  std::int64_t epoch_;
  Batch& batch_;
};

}  // namespace

std::uint64_t dropout_key(std::int64_t epoch, std::int64_t sample, std::int64_t position_in_sample) {
  return token_key(sample_key(epoch, sample), position_in_sample);
}

Batch make_batch(const TokenData& data, const RowPlan& plan, std::int64_t epoch, std::int64_t first_row,
                 std::int64_t rows, TokenId pad_id) {
  Batch batch;
  batch.rows = static_cast<std::int32_t>(rows);
  batch.epoch = epoch;
  batch.seq = static_cast<std::int32_t>(plan.row_length);
  const auto n = static_cast<std::size_t>(rows * plan.row_length);
  batch.input_ids.assign(n, pad_id);
  batch.targets.assign(n, -1);
  batch.positions.assign(n, 0);
  batch.seq_start.resize(n);
  for (std::size_t i = 0; i < n; ++i) batch.seq_start[i] = static_cast<std::int32_t>(i);
  batch.token_keys.assign(n, 0);
  BatchFiller filler(data, plan, epoch, batch);
  for (std::int64_t r = 0; r < rows && first_row + r < plan.rows(); ++r) filler.row(first_row + r, r);
  return batch;
}

}  // namespace convoy
