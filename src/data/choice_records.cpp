// Records of multiple-choice stories.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "data/records.h"

namespace convoy {
namespace {

// The number behind `prefix` in a column's name.
std::optional<std::int32_t> number_of(std::string_view column, std::string_view prefix) {
  if (!column.starts_with(prefix) || column.size() == prefix.size()) return std::nullopt;
  std::int32_t number = 0;
  const auto [end, failed] = std::from_chars(column.data() + prefix.size(), column.data() + column.size(), number);
  if (failed != std::errc() || end != column.data() + column.size()) return std::nullopt;
  return number;
}

struct Numbered {
  std::int32_t number;
  const std::string* text;
};

// The columns PREFIX0, PREFIX1, … by their numbers.
std::vector<Numbered> numbered(const std::vector<std::string>& present, const FieldLookup& find,
                               std::string_view prefix) {
  std::vector<Numbered> found;
  for (const std::string& column : present) {
    if (const auto number = number_of(column, prefix)) found.push_back({*number, find(column)});
  }
  std::sort(found.begin(), found.end(), [](const Numbered& a, const Numbered& b) { return a.number < b.number; });
  return found;
}

std::vector<Numbered> first_of(const std::vector<std::string>& present, const FieldLookup& find,
                               std::initializer_list<const char*> prefixes) {
  for (const char* prefix : prefixes) {
    std::vector<Numbered> found = numbered(present, find, prefix);
    if (!found.empty()) return found;
  }
  return {};
}

std::string story_of(const std::vector<std::string>& present, const FieldLookup& find) {
  for (const char* name : {"story", "context"}) {
    if (const std::string* text = find(name)) return *text;
  }
  std::string story;
  for (const Numbered& sentence : first_of(present, find, {"InputSentence", "sentence"})) {
    if (sentence.text->empty()) continue;
    story += (story.empty() ? "" : " ") + *sentence.text;
  }
  return story;
}

Error not_a_choice(const std::vector<std::string>& present, std::string_view lacks) {
  return data_error(fmt::format("no {} among the fields '{}'", lacks, fmt::join(present, "', '")))
      .mend(
          "a choice needs story (or context, sentence1 …, InputSentence1 …), ending1 and ending2 (or "
          "RandomFifthSentenceQuiz1 …), and a label (or AnswerRightEnding) with the number of the right ending's "
          "column");
}

}  // namespace

void read_choice(const std::vector<std::string>& present, const FieldLookup& find, const FieldNames& names,
                 Sample& sample) {
  sample.kind = Sample::Kind::kChoice;
  sample.text = story_of(present, find);
  const std::vector<Numbered> endings = first_of(present, find, {"RandomFifthSentenceQuiz", "ending"});
  if (endings.size() < 2) throw not_a_choice(present, "endings");
  const std::string* label = find(names.label);
  if (label == nullptr) label = find("AnswerRightEnding");
  if (label == nullptr) throw not_a_choice(present, "label");
  const auto number = number_of("#" + *label, "#");
  for (const Numbered& ending : endings) {
    if (ending.text->find_first_not_of(" \t\r\n") == std::string::npos)
      throw data_error(fmt::format("ending {} is empty", ending.number));
    if (number == ending.number) sample.right = static_cast<std::int32_t>(sample.endings.size());
    sample.endings.push_back(*ending.text);
  }
  if (sample.right < 0) {
    throw data_error(fmt::format("the label '{}' is the number of no ending: they are {} to {}", *label,
                                 endings.front().number, endings.back().number));
  }
}

}  // namespace convoy
