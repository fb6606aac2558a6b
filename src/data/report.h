// What became of the data: every document that was read is either trained on or counted here by the reason why not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace convoy {

struct DataReport {
  // One document that was left out.
  struct Skipped {
    std::string where;  // "file:line"
    std::string reason;
  };
  static constexpr std::size_t kMaxExamples = 20;

  std::int64_t files = 0;
  std::int64_t bytes = 0;      // after decompression
  std::int64_t documents = 0;  // read from the sources, whole or not
  std::int64_t samples = 0;    // usable: tokenised, with at least one target
  std::int64_t tokens = 0;     // of the usable samples
  std::int64_t targets = 0;    // of the usable samples

  // Left out, by kind: "malformed", "empty", "no target", "too long", …
  std::map<std::string, std::int64_t> skipped;
  std::vector<Skipped> examples;  // the first kMaxExamples of them

  // Of the row plan of one epoch.
  std::int64_t truncated = 0;               // samples cut to the row length
  std::int64_t truncated_tokens = 0;        // tokens that were cut off
  std::int64_t split = 0;                   // samples cut into pieces
  std::int64_t pieces_without_targets = 0;  // pieces of split samples that hold no target and are left out
  std::int64_t rows = 0;
  std::int64_t row_tokens = 0;    // tokens in those rows
  std::int64_t dropped_rows = 0;  // at the end of the epoch, where incomplete steps are dropped
  double fill_ratio = 0;          // row_tokens / (rows · row length); 0 before planning

  void skip(const std::string& kind, const std::string& where, const std::string& reason);
  // Adds the counts and examples of another report.
  void merge(const DataReport& other);
  std::int64_t total_skipped() const;
  // One paragraph for the log of a run.
  std::string text() const;

  Json to_json() const;
  // Throws a data error when a field is missing or of the wrong type.
  static DataReport from_json(const Json& json);
};

}  // namespace convoy
