// Predictions beside references, and how far they are apart.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/error_rate.h"

namespace convoy {

struct TextPair {
  std::string reference, hypothesis;
  std::string where;  // "file:line"
};

// Line n of one file belongs to line n of the other. Throws a data error where one has fewer lines.
std::vector<TextPair> read_text_pairs(const std::filesystem::path& hypotheses, const std::filesystem::path& references);

// JSON lines. Fields that are not named are looked for: hypothesis, prediction, pred_text, completion; reference, text,
// target, label, sentence. Throws data errors with file and line.
struct PairFields {
  std::string hypothesis, reference;  // empty: the first of the usual ones that the first line has
};
std::vector<TextPair> read_text_pairs_json(const std::filesystem::path& file, const PairFields& fields = {});

// Sums over the pairs: an error rate is all errors over all units of the references.
struct ErrorRates {
  std::int64_t pairs = 0;
  std::int64_t wrong = 0;  // pairs that differ
  EditCounts words, characters, mixed;
  double sentence_error_rate() const { return pairs > 0 ? static_cast<double>(wrong) / static_cast<double>(pairs) : 0; }
};
// Of one pair, both texts normalised first.
ErrorRates error_rates(const TextPair& pair, const TextNormalization& how);
ErrorRates error_rates(const std::vector<TextPair>& pairs, const TextNormalization& how);
// Rates, and counts by kind of edit. A rate over an empty reference is null.
Json to_json(const ErrorRates& rates);

}  // namespace convoy
