#include "data/packing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "base/suggest.h"

namespace convoy {
namespace {

constexpr std::array<std::pair<RowMode, std::string_view>, 3> kModes{
    {{RowMode::kPack, "pack"}, {RowMode::kPad, "pad"}, {RowMode::kConcat, "concat"}}};
constexpr std::array<std::pair<Overlong, std::string_view>, 3> kOverlong{
    {{Overlong::kSplit, "split"}, {Overlong::kTruncate, "truncate"}, {Overlong::kDrop, "drop"}}};

template <typename T>
std::string_view find_name(const std::array<std::pair<T, std::string_view>, 3>& names, T value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  throw internal_error("a value without a name");
}

template <typename T>
T find_value(const std::array<std::pair<T, std::string_view>, 3>& names, std::string_view name, std::string_view what) {
  std::vector<std::string> known;
  for (const auto& [value, text] : names) {
    if (text == name) return value;
    known.emplace_back(text);
  }
  throw usage_error(fmt::format("unknown {} '{}'{}", what, name, did_you_mean(name, known)))
      .mend(fmt::format("use one of {}", fmt::join(known, ", ")));
}

void check_options(const RowOptions& options) {
  if (options.row_length < 2 || options.row_length > std::numeric_limits<std::int32_t>::max())
    throw usage_error(fmt::format("a row length of {} tokens is not in [2, 2^31)", options.row_length));
  if (options.window < 1) throw usage_error(fmt::format("a packing window of {} rows is not positive", options.window));
  if (options.mode == RowMode::kConcat && options.overlong != Overlong::kSplit) {
    throw usage_error(fmt::format("row mode concat cannot {} long documents", name_of(options.overlong)))
        .mend("concat cuts documents where a row ends; use row mode pack or pad, or leave overlong at split");
  }
  if (options.parts > 0) {
    check(options.mode == RowMode::kPad && options.overlong == Overlong::kTruncate, "a task's rows hold one item each");
    check(options.row_length % options.parts == 0, "a task's rows are whole parts");
  }
  if (options.mode != RowMode::kConcat && options.cross_document_attention) {
    throw usage_error(fmt::format("cross_document_attention has no meaning in row mode {}", name_of(options.mode)))
        .mend("set row mode concat, or turn it off");
  }
}

// Targets of the segment [begin, begin + length); `beyond`: whether the token behind it is one of them.
std::int64_t segment_targets(const TokenData& data, const Segment& s, bool beyond) {
  const std::int64_t end = std::min(data.length(s.document), std::int64_t{s.begin} + s.length + (beyond ? 1 : 0));
  return data.targets(s.document, std::int64_t{s.begin} + 1, end);
}

// Calls piece(segment) for each piece of a document that does not exceed a row and has a target.
template <typename Piece>
void cut(const TokenData& data, DocumentId document, const RowOptions& options, Piece piece) {
  const std::int64_t length = data.length(document);
  const std::int64_t most = options.row_length;
  if (length <= most || options.overlong == Overlong::kTruncate) {
    piece(Segment{document, 0, static_cast<std::uint32_t>(std::min(length, most))});
    return;
  }
  // The last token is only ever a target here: as an input it would have nothing to predict.
  for (std::int64_t begin = 0; begin < length - 1; begin += most) {
    const Segment s{document, static_cast<std::uint32_t>(begin),
                    static_cast<std::uint32_t>(std::min(most, length - 1 - begin))};
    if (segment_targets(data, s, true) > 0) piece(s);
  }
}

// Sorts (row, segment) pairs that lie in order of arrival into rows.
void gather_rows(std::vector<Segment> arrived, const std::vector<std::uint32_t>& row_of, std::size_t rows,
                 RowPlan& plan) {
  plan.row_begin.assign(rows + 1, 0);
  for (const std::uint32_t r : row_of) ++plan.row_begin[r + 1];
  std::partial_sum(plan.row_begin.begin(), plan.row_begin.end(), plan.row_begin.begin());
  std::vector<std::uint64_t> at(plan.row_begin.begin(), plan.row_begin.end() - 1);
  plan.segments.resize(arrived.size());
  for (std::size_t i = 0; i < arrived.size(); ++i) plan.segments[at[row_of[i]]++] = arrived[i];
}

void pack(const TokenData& data, std::span<const DocumentId> documents, const RowOptions& options, RowPlan& plan) {
  std::vector<Segment> arrived;
  std::vector<std::uint32_t> row_of;
  std::uint32_t rows = 0;
  std::set<std::pair<std::uint32_t, std::uint32_t>> open;  // (free tokens, row)
  const auto place = [&](const Segment& s) {
    auto best = open.lower_bound({s.length, 0});
    std::pair<std::uint32_t, std::uint32_t> row;
    if (best == open.end()) {
      check(rows < std::numeric_limits<std::uint32_t>::max(), "more than 2^32 rows in an epoch");
      row = {static_cast<std::uint32_t>(options.row_length), rows++};
    } else {
      row = *best;
      open.erase(best);
    }
    arrived.push_back(s);
    row_of.push_back(row.second);
    row.first -= s.length;
    if (row.first > 0) open.insert(row);
    if (open.size() > static_cast<std::size_t>(options.window)) open.erase(open.begin());
  };
  for (const DocumentId document : documents) cut(data, document, options, place);
  gather_rows(std::move(arrived), row_of, rows, plan);
}

void pad(const TokenData& data, std::span<const DocumentId> documents, const RowOptions& options, RowPlan& plan) {
  for (const DocumentId document : documents) {
    cut(data, document, options, [&](const Segment& s) {
      plan.segments.push_back(s);
      plan.row_begin.push_back(plan.segments.size());
    });
  }
}

void concat(const TokenData& data, std::span<const DocumentId> documents, const RowOptions& options, RowPlan& plan) {
  std::int64_t used = 0;
  for (const DocumentId document : documents) {
    const std::int64_t length = data.length(document);
    for (std::int64_t begin = 0; begin < length;) {
      const std::int64_t n = std::min(length - begin, options.row_length - used);
      plan.segments.push_back({document, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(n)});
      begin += n;
      used += n;
      if (used == options.row_length) {
        plan.row_begin.push_back(plan.segments.size());
        used = 0;
      }
    }
  }
  if (used > 0) plan.row_begin.push_back(plan.segments.size());
}

bool first_is_target(const TokenData& data, DocumentId document) {
  return data.targets(document, 0, 1) > 0;
}

void count_rows(const TokenData& data, RowPlan& plan) {
  // The first segment of a document need not begin at its first token: a piece without targets is left out.
  std::vector<bool> seen(static_cast<std::size_t>(data.documents()));
  for (std::int64_t r = 0; r < plan.rows(); ++r) {
    std::int64_t targets = 0, tokens = 0, samples = 0;
    for (std::size_t i = plan.row_begin[static_cast<std::size_t>(r)];
         i < plan.row_begin[static_cast<std::size_t>(r) + 1]; ++i) {
      const Segment& s = plan.segments[i];
      tokens += s.length;
      targets += segment_targets(data, s, plan.continues);
      const bool ends = std::int64_t{s.begin} + s.length == data.length(s.document);
      if (plan.cross_document && ends && i + 1 < plan.segments.size())
        targets += first_is_target(data, plan.segments[i + 1].document) ? 1 : 0;
      if (!seen[s.document]) {
        seen[s.document] = true;
        ++samples;
      }
    }
    plan.row_targets.push_back(static_cast<std::int32_t>(targets));
    plan.row_tokens.push_back(static_cast<std::int32_t>(tokens));
    plan.row_samples.push_back(static_cast<std::int32_t>(samples));
  }
}

}  // namespace

std::string_view name_of(RowMode mode) {
  return find_name(kModes, mode);
}
RowMode parse_row_mode(std::string_view name) {
  return find_value(kModes, name, "row mode");
}
std::string_view name_of(Overlong overlong) {
  return find_name(kOverlong, overlong);
}
Overlong parse_overlong(std::string_view name) {
  return find_value(kOverlong, name, "treatment of long documents");
}

std::vector<DocumentId> usable_documents(const TokenData& data, std::span<const DocumentId> documents,
                                         const RowOptions& options, DataReport& report) {
  check_options(options);
  std::vector<DocumentId> usable;
  usable.reserve(documents.size());
  for (const DocumentId document : documents) {
    const std::int64_t length = data.length(document);
    const std::string where = length > options.row_length ? fmt::format("sample {}", document) : std::string();
    if (length > options.row_length && options.mode != RowMode::kConcat) {
      if (options.overlong == Overlong::kDrop) {
        report.skip("too long", where, fmt::format("{} tokens in rows of {}", length, options.row_length));
        continue;
      }
      if (options.overlong == Overlong::kTruncate) {
        if (data.targets(document, 1, options.row_length) == 0) {
          report.skip("no target", where, fmt::format("no target in the first {} tokens", options.row_length));
          continue;
        }
        ++report.truncated;
        report.truncated_tokens += length - options.row_length;
      } else {
        std::int64_t pieces = 0;
        cut(data, document, options, [&](const Segment&) { ++pieces; });
        const std::int64_t all = (length - 2) / options.row_length + 1;
        if (all > 1) ++report.split;
        report.pieces_without_targets += all - pieces;
      }
    }
    usable.push_back(document);
  }
  return usable;
}

RowPlan plan_rows(const TokenData& data, std::span<const DocumentId> documents, const RowOptions& options) {
  check_options(options);
  RowPlan plan;
  plan.row_length = options.row_length;
  plan.cross_document = options.cross_document_attention;
  plan.parts = options.parts;
  plan.continues = options.overlong != Overlong::kTruncate;
  switch (options.mode) {
    case RowMode::kPack:
      pack(data, documents, options, plan);
      break;
    case RowMode::kPad:
      pad(data, documents, options, plan);
      break;
    case RowMode::kConcat:
      concat(data, documents, options, plan);
      break;
  }
  count_rows(data, plan);
  return plan;
}

RowPlan shuffle_rows(const RowPlan& plan, std::uint64_t seed, std::int64_t epoch) {
  constexpr std::uint64_t kStream = std::uint64_t{1} << 40;  // apart from the streams that order documents
  RowPlan shuffled;
  shuffled.row_length = plan.row_length;
  shuffled.cross_document = plan.cross_document;
  shuffled.parts = plan.parts;
  shuffled.continues = plan.continues;
  shuffled.segments.reserve(plan.segments.size());
  for (const std::uint64_t r :
       permutation(static_cast<std::uint64_t>(plan.rows()), seed, kStream + static_cast<std::uint64_t>(epoch))) {
    const std::span<const Segment> row = plan.row(static_cast<std::int64_t>(r));
    shuffled.segments.insert(shuffled.segments.end(), row.begin(), row.end());
    shuffled.row_begin.push_back(shuffled.segments.size());
    shuffled.row_targets.push_back(plan.row_targets[r]);
    shuffled.row_tokens.push_back(plan.row_tokens[r]);
    shuffled.row_samples.push_back(plan.row_samples[r]);
  }
  return shuffled;
}

void report_rows(const RowPlan& plan, DataReport& report) {
  report.rows = plan.rows();
  report.row_tokens = std::accumulate(plan.row_tokens.begin(), plan.row_tokens.end(), std::int64_t{0});
  report.fill_ratio = plan.rows() == 0 ? 0.0
                                       : static_cast<double>(report.row_tokens) /
                                             (static_cast<double>(plan.rows()) * static_cast<double>(plan.row_length));
}

}  // namespace convoy
