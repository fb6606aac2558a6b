#include "data/text_pairs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/input.h"

namespace convoy {
namespace {

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  LineReader reader(open_stream(file), file.string());
  std::vector<std::string> lines;
  for (std::string_view line; reader.next(line);) lines.emplace_back(line);
  return lines;
}

// The named field, or the first of `usual` that the record has.
std::string choose_field(const Json& record, const std::string& named, const std::vector<std::string>& usual,
                         const char* what, const std::string& where) {
  if (!named.empty()) return named;
  for (const std::string& name : usual) {
    if (record.contains(name)) return name;
  }
  throw data_error(fmt::format("no {}: none of the fields {}", what, fmt::join(usual, ", ")))
      .at(where)
      .mend(fmt::format("name it with --{}_field", what));
}

std::string text_in(const Json& record, const std::string& field, const std::string& where) {
  const auto found = record.find(field);
  if (found == record.end()) throw data_error(fmt::format("no field '{}'", field)).at(where);
  if (!found->is_string()) throw data_error(fmt::format("field '{}' is not a string", field)).at(where);
  return found->get<std::string>();
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json counts(const EditCounts& edits) {
  return {{"substitutions", edits.substitutions},
          {"insertions", edits.insertions},
          {"deletions", edits.deletions},
          {"reference", edits.reference}};
}

}  // namespace

std::vector<TextPair> read_text_pairs(const std::filesystem::path& hypotheses,
                                      const std::filesystem::path& references) {
  const std::vector<std::string> guessed = lines_of(hypotheses);
  const std::vector<std::string> right = lines_of(references);
  if (guessed.size() != right.size()) {
    throw data_error(
        fmt::format("{} lines, and the references in {} have {}", guessed.size(), references.string(), right.size()))
        .at(hypotheses.string())
        .mend("give as many lines: an empty one where nothing was recognised");
  }
  std::vector<TextPair> pairs;
  for (std::size_t i = 0; i < right.size(); ++i)
    pairs.push_back({right[i], guessed[i], fmt::format("{}:{}", hypotheses.string(), i + 1)});
  return pairs;
}

std::vector<TextPair> read_text_pairs_json(const std::filesystem::path& file, const PairFields& fields) {
  LineReader reader(open_stream(file), file.string());
  std::vector<TextPair> pairs;
  PairFields chosen = fields;
  for (std::string_view line; reader.next(line);) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", file.string(), reader.number());
    Json record;
    try {
      record = parse_json(line, where);
    } catch (const Error& error) {
      throw data_error(error.message()).at(where);
    }
    if (!record.is_object()) throw data_error("not a JSON object").at(where);
    if (pairs.empty()) {
      chosen.hypothesis = choose_field(record, fields.hypothesis,
                                       {"hypothesis", "prediction", "pred_text", "completion"}, "hypothesis", where);
      chosen.reference = choose_field(record, fields.reference, {"reference", "text", "target", "label", "sentence"},
                                      "reference", where);
    }
    pairs.push_back({text_in(record, chosen.reference, where), text_in(record, chosen.hypothesis, where), where});
  }
  return pairs;
}

ErrorRates error_rates(const TextPair& pair, const TextNormalization& how) {
  const std::string reference = normalize_text(pair.reference, how);
  const std::string hypothesis = normalize_text(pair.hypothesis, how);
  ErrorRates rates;
  rates.pairs = 1;
  rates.wrong = reference == hypothesis ? 0 : 1;
  rates.words = count_edits(reference, hypothesis, ErrorUnit::kWord);
  rates.characters = count_edits(reference, hypothesis, ErrorUnit::kCharacter);
  rates.mixed = count_edits(reference, hypothesis, ErrorUnit::kMixed);
  return rates;
}

ErrorRates error_rates(const std::vector<TextPair>& pairs, const TextNormalization& how) {
  ErrorRates sums;
  for (const TextPair& pair : pairs) {
    const ErrorRates one = error_rates(pair, how);
    sums.pairs += one.pairs;
    sums.wrong += one.wrong;
    sums.words += one.words;
    sums.characters += one.characters;
    sums.mixed += one.mixed;
  }
  return sums;
}

Json to_json(const ErrorRates& rates) {
  return {{"pairs", rates.pairs},
          {"wer", number(rates.words.rate())},
          {"cer", number(rates.characters.rate())},
          {"mer", number(rates.mixed.rate())},
          {"sentence_error_rate", rates.sentence_error_rate()},
          {"words", counts(rates.words)},
          {"characters", counts(rates.characters)},
          {"mixed", counts(rates.mixed)}};
}

}  // namespace convoy
