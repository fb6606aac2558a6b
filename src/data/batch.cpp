#include "data/batch.h"

#include <algorithm>

#include "base/error.h"

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
  BatchFiller(const TokenData& data, const RowPlan& plan, std::int64_t epoch, std::int64_t length, Batch& batch)
      : data_(data), plan_(plan), epoch_(epoch), length_(length), batch_(batch) {}

  void row(std::int64_t plan_row, std::int64_t batch_row) {
    const auto row_start = static_cast<std::size_t>(batch_row * length_);
    if (plan_.parts > 0) return item(plan_.row(plan_row).front(), plan_row, batch_row);
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
  // A task's document: its alternatives at equal distances, each a text of its own.
  void item(const Segment& s, std::int64_t plan_row, std::int64_t batch_row) {
    const std::span<const std::uint32_t> later = data_.parts(s.document);
    check(static_cast<std::int64_t>(later.size()) + 1 == plan_.parts, "a document with another number of alternatives");
    const std::uint64_t key = sample_key(epoch_, s.document);
    for (std::int64_t p = 0; p < plan_.parts; ++p) {
      const auto index = static_cast<std::size_t>(p);
      const std::uint32_t begin = p == 0 ? 0 : later[index - 1];
      const std::uint32_t end = index < later.size() ? later[index] : s.length;
      const std::int64_t at = batch_row * length_ + p * (length_ / plan_.parts);
      check(end - begin <= length_ / plan_.parts, "an alternative is longer than its part of a row");
      const Segment part{s.document, begin, end - begin};
      segment(part, static_cast<std::size_t>(at), static_cast<std::size_t>(at));
      targets_of(part, end, static_cast<std::size_t>(at));
      const auto head = static_cast<std::size_t>(batch_row * plan_.parts + p);
      batch_.head_rows[head] = static_cast<std::int32_t>(at + (end - begin) - 1);
      batch_.head_keys[head] = token_key(key, -1);  // no token has this one
    }
    batch_.head_labels[static_cast<std::size_t>(batch_row)] = data_.label(s.document);
    batch_.samples.resize(batch_.samples.size() - static_cast<std::size_t>(plan_.parts) + 1);
    batch_.target_count += plan_.row_targets[static_cast<std::size_t>(plan_row)];
    batch_.token_count += plan_.row_tokens[static_cast<std::size_t>(plan_row)];
  }

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
    const std::int64_t end = std::int64_t{s.begin} + s.length;
    targets_of(s, std::min(length, end + (plan_.continues ? 1 : 0)), at);
    if (plan_.cross_document && end == length && index + 1 < plan_.segments.size()) {
      const DocumentId following = plan_.segments[index + 1].document;
      if (data_.targets(following, 0, 1) > 0) data_.copy(following, 0, 1, batch_.targets.data() + at + s.length - 1);
    }
  }

  // Marks what is trained of (begin of the segment, last).
  void targets_of(const Segment& s, std::int64_t last, std::size_t at) {
    const std::int64_t begin = s.begin;
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
  }

  const TokenData& data_;
  const RowPlan& plan_;
  std::int64_t epoch_;
  std::int64_t length_;  // of a row
  Batch& batch_;
};

}  // namespace

std::uint64_t dropout_key(std::int64_t epoch, std::int64_t sample, std::int64_t position_in_sample) {
  return token_key(sample_key(epoch, sample), position_in_sample);
}

Batch make_batch(const TokenData& data, const RowPlan& plan, std::int64_t epoch, const BatchRows& which,
                 TokenId pad_id) {
  Batch batch;
  batch.rows = static_cast<std::int32_t>(which.rows);
  batch.epoch = epoch;
  batch.seq = static_cast<std::int32_t>(which.length);
  const auto n = static_cast<std::size_t>(which.rows * which.length);
  batch.input_ids.assign(n, pad_id);
  batch.targets.assign(n, -1);
  batch.positions.assign(n, 0);
  batch.seq_start.resize(n);
  for (std::size_t i = 0; i < n; ++i) batch.seq_start[i] = static_cast<std::int32_t>(i);
  batch.token_keys.assign(n, 0);
  if (plan.parts > 0) {
    const auto heads = static_cast<std::size_t>(which.rows * plan.parts);
    batch.head_rows.assign(heads, 0);  // an empty row looks at some token, and nothing comes of it
    batch.head_keys.assign(heads, 0);
    batch.head_labels.assign(static_cast<std::size_t>(which.rows), -1);
  }
  check(which.end_row - which.first_row <= which.rows, "more rows than a micro-batch holds");
  BatchFiller filler(data, plan, epoch, which.length, batch);
  for (std::int64_t r = which.first_row; r < which.end_row; ++r) {
    for (const Segment& segment : plan.row(r))
      check(segment.length <= which.length, "a document longer than its bucket's rows");
    filler.row(r, r - which.first_row);
  }
  return batch;
}

}  // namespace convoy
