// Rows of fixed length from documents of any length.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "data/report.h"
#include "data/split.h"
#include "data/token_data.h"

namespace convoy {

enum class RowMode : std::uint8_t {
  kPack,    // several documents per row, each whole where it fits
  kPad,     // one document per row
  kConcat,  // documents end to end, cut into rows wherever a row is full
};
std::string_view name_of(RowMode mode);
RowMode parse_row_mode(std::string_view name);  // "pack", "pad", "concat"

// What happens to documents longer than a row (kConcat cuts every document where a row ends).
enum class Overlong : std::uint8_t { kSplit, kTruncate, kDrop };
std::string_view name_of(Overlong overlong);
Overlong parse_overlong(std::string_view name);  // "split", "truncate", "drop"

struct RowOptions {
  std::int64_t row_length = 0;
  RowMode mode = RowMode::kPack;
  Overlong overlong = Overlong::kSplit;
  // kPack: how many rows are kept open for documents that still fit. More fill rows better.
  std::int64_t window = 256;
  // kConcat: a token sees the whole row before it, and the first token of a document is predicted like others.
  bool cross_document_attention = false;
  // Of a task: how many alternatives a document has, each of which gets an equal part of the row; 0: a language model's
  // documents. With kPad alone.
  std::int64_t parts = 0;
};

// Tokens [begin, begin + length) of a document, side by side in one row. Its tokens see none outside of it.
struct Segment {
  DocumentId document = 0;
  std::uint32_t begin = 0, length = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

// The rows of one epoch. The target of a position is the token after it in the document, also where a split document
// goes on in another segment: so splitting loses no target. No target has the last token of a document (unless
// documents see each other) and the place where one was truncated.
struct RowPlan {
  std::int64_t row_length = 0;
  bool cross_document = false;
  std::int64_t parts = 0;
  bool continues = true;  // whether a segment that ends before its document has a target at its end
  std::vector<Segment> segments;
  std::vector<std::uint64_t> row_begin{0};  // segments of row r: [row_begin[r], row_begin[r + 1])
  std::vector<std::int32_t> row_targets;    // targets in row r
  std::vector<std::int32_t> row_tokens;     // tokens in row r that are not padding
  std::vector<std::int32_t> row_samples;    // documents whose first segment lies in row r

  std::int64_t rows() const { return static_cast<std::int64_t>(row_begin.size()) - 1; }
  std::span<const Segment> row(std::int64_t r) const {
    const auto at = static_cast<std::size_t>(r);
    return std::span(segments).subspan(row_begin[at], row_begin[at + 1] - row_begin[at]);
  }
};

// The documents that rows can be made of, in the order given. Left out and counted: those too long (kDrop), those
// without a target once truncated. Also counts what is truncated or split. Throws a usage error for options that
// contradict each other.
std::vector<DocumentId> usable_documents(const TokenData& data, std::span<const DocumentId> documents,
                                         const RowOptions& options, DataReport& report);

// The rows of `documents` (usable ones, in the order of the epoch). kPack puts each piece into the open row that it
// fills best, the first of equals; of too many open rows the fullest is closed. Rows stand in the order of opening.
RowPlan plan_rows(const TokenData& data, std::span<const DocumentId> documents, const RowOptions& options);

// The rows in another order, a function of (seed, epoch) alone. The pieces of a long document lie in neighbouring rows
// of a plan; a batch of neighbours would see few documents, and its gradient would say little.
RowPlan shuffle_rows(const RowPlan& plan, std::uint64_t seed, std::int64_t epoch);

// Adds rows, tokens in them and how full they are.
void report_rows(const RowPlan& plan, DataReport& report);

}  // namespace convoy
