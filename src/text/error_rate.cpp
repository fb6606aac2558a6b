#include "text/error_rate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/suggest.h"
#include "text/unicode.h"

namespace convoy {
namespace {

constexpr std::array<std::pair<std::string_view, ErrorUnit>, 3> kUnits = {{
    {"word", ErrorUnit::kWord},
    {"character", ErrorUnit::kCharacter},
    {"mixed", ErrorUnit::kMixed},
}};

std::u32string code_points(std::string_view text) {
  std::u32string out;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    out += point.code;
    at += point.length;
  }
  return out;
}

std::string utf8(std::u32string_view text) {
  std::string out;
  for (const char32_t code : text) append_utf8(out, code);
  return out;
}

std::uint16_t class_of(char32_t code) {
  return UnicodeTable::get()[code];
}
bool is_space(char32_t code) {
  return (class_of(code) & char_class::kSpace) != 0;
}
bool is_letter(char32_t code) {
  return (class_of(code) & char_class::kLetter) != 0;
}
bool is_mark_or_symbol(char32_t code) {
  const Category category = UnicodeTable::category(class_of(code));
  return (category >= Category::kMn && category <= Category::kMe) ||
         (category >= Category::kPc && category <= Category::kSk) || category == Category::kSo;
}

// Written without spaces between words: Han, kana, bopomofo and their extensions.
bool stands_alone(char32_t c) {
  return (c >= 0x2E80 && c <= 0x2FDF) || (c >= 0x3005 && c <= 0x3007) || (c >= 0x3021 && c <= 0x3029) ||
         (c >= 0x3040 && c <= 0x312F) || (c >= 0x31A0 && c <= 0x31BF) || (c >= 0x31F0 && c <= 0x31FF) ||
         (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x20000 && c <= 0x323AF);
}

// Takes out every `open` … `close` pair with no `close` between, over any of the given kinds.
std::u32string without_brackets(const std::u32string& text) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t end = std::u32string::npos;
    if (text[i] == U'[' || text[i] == U'<') {
      end = text.find_first_of(U"]>", i + 1);
    } else if (text[i] == U'(') {
      end = text.find(U')', i + 1);
      if (end == i + 1) end = std::u32string::npos;  // "()" stays for the punctuation step, as Whisper has it
    }
    if (end == std::u32string::npos) {
      out += text[i];
    } else {
      i = end;
    }
  }
  return out;
}

void to_lower(std::u32string& text) {
  for (char32_t& code : text) code = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

std::u32string nfkc(const std::u32string& text) {
  const std::string bytes = utf8(text);
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()), static_cast<utf8proc_ssize_t>(bytes.size()),
                   &mapped, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_COMPAT));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (size < 0) throw internal_error(fmt::format("text cannot be normalised: {}", utf8proc_errmsg(size)));
  return code_points({reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size)});
}

void punctuation_to_spaces(std::u32string& text, bool keep_apostrophes) {
  const std::u32string before = text;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_mark_or_symbol(before[i])) continue;
    const bool apostrophe = before[i] == U'\'' || before[i] == U'\u2019';
    const bool inside = i > 0 && i + 1 < before.size() && is_letter(before[i - 1]) && is_letter(before[i + 1]);
    text[i] = keep_apostrophes && apostrophe && inside ? U'\'' : U' ';
  }
}

std::u32string with_spaces(const std::u32string& text, bool any) {
  std::u32string out;
  for (const char32_t code : text) {
    if (!is_space(code)) {
      out += code;
    } else if (any && !out.empty() && out.back() != U' ') {
      out += U' ';
    }
  }
  if (any && !out.empty() && out.back() == U' ') out.pop_back();
  return out;
}

struct Named {
  std::string_view name;
  TextNormalization how;
};
const std::array<Named, 4>& named_normalizations() {
  static const std::array<Named, 4> all = {{
      {"none", {}},
      {"basic",
       {.lower_case = true,
        .drop_brackets = true,
        .compatibility = true,
        .drop_punctuation = true,
        .collapse_spaces = true}},
      {"words",
       {.lower_case = true,
        .compatibility = true,
        .drop_punctuation = true,
        .keep_apostrophes = true,
        .collapse_spaces = true}},
      {"chinese",
       {.lower_case = true,
        .drop_brackets = true,
        .compatibility = true,
        .drop_punctuation = true,
        .drop_spaces = true}},
  }};
  return all;
}

template <typename List, typename NameOf>
Error unknown_name(std::string_view what, std::string_view name, const List& list, NameOf name_of_item) {
  std::vector<std::string> known;
  for (const auto& item : list) known.emplace_back(name_of_item(item));
  return usage_error(fmt::format("unknown {} '{}'{}", what, name, did_you_mean(name, known)))
      .mend(fmt::format("use one of {}", fmt::join(known, ", ")));
}

}  // namespace

double EditCounts::rate() const {
  if (reference > 0) return static_cast<double>(errors()) / static_cast<double>(reference);
  return errors() == 0 ? 0.0 : std::numeric_limits<double>::infinity();
}

EditCounts& EditCounts::operator+=(const EditCounts& other) {
  substitutions += other.substitutions;
  insertions += other.insertions;
  deletions += other.deletions;
  reference += other.reference;
  return *this;
}

std::string_view name_of(ErrorUnit unit) {
  return kUnits[static_cast<std::size_t>(unit)].first;
}

ErrorUnit parse_error_unit(std::string_view name) {
  for (const auto& [text, unit] : kUnits) {
    if (text == name) return unit;
  }
  throw unknown_name("unit of errors", name, kUnits, [](const auto& item) { return item.first; });
}

std::vector<std::u32string> error_units(std::string_view text, ErrorUnit unit) {
  std::vector<std::u32string> units;
  bool within = false;  // a word that the next character may belong to
  for (const char32_t code : code_points(text)) {
    if (unit == ErrorUnit::kCharacter) {
      units.emplace_back(1, code);
    } else if (is_space(code)) {
      within = false;
    } else if (unit == ErrorUnit::kMixed && stands_alone(code)) {
      units.emplace_back(1, code);
      within = false;
    } else {
      if (!within) units.emplace_back();
      units.back() += code;
      within = true;
    }
  }
  return units;
}

EditCounts count_edits(std::span<const std::u32string> reference, std::span<const std::u32string> hypothesis) {
  // Levenshtein's table, one row at a time; each cell also carries how its best way got there.
  struct Cell {
    std::int64_t errors = 0, substitutions = 0, insertions = 0, deletions = 0;
    bool better_than(const Cell& other) const {
      return errors != other.errors ? errors < other.errors : substitutions > other.substitutions;
    }
  };
  std::vector<Cell> row(hypothesis.size() + 1);
  for (std::size_t j = 0; j <= hypothesis.size(); ++j) {
    row[j].errors = row[j].insertions = static_cast<std::int64_t>(j);
  }
  for (std::size_t i = 1; i <= reference.size(); ++i) {
    Cell diagonal = row[0];
    row[0].errors = row[0].deletions = static_cast<std::int64_t>(i);
    for (std::size_t j = 1; j <= hypothesis.size(); ++j) {
      Cell best = diagonal;
      diagonal = row[j];
      if (reference[i - 1] != hypothesis[j - 1]) {
        ++best.errors;
        ++best.substitutions;
      }
      Cell deletion = row[j], insertion = row[j - 1];
      ++deletion.errors;
      ++deletion.deletions;
      ++insertion.errors;
      ++insertion.insertions;
      if (deletion.better_than(best)) best = deletion;
      if (insertion.better_than(best)) best = insertion;
      row[j] = best;
    }
  }
  const Cell& end = row.back();
  return {end.substitutions, end.insertions, end.deletions, static_cast<std::int64_t>(reference.size())};
}

EditCounts count_edits(std::string_view reference, std::string_view hypothesis, ErrorUnit unit) {
  return count_edits(error_units(reference, unit), error_units(hypothesis, unit));
}

TextNormalization TextNormalization::named(std::string_view name) {
  for (const Named& known : named_normalizations()) {
    if (known.name == name) return known.how;
  }
  throw unknown_name("normalisation", name, named_normalizations(), [](const Named& item) { return item.name; });
}

std::string normalize_text(std::string_view text, const TextNormalization& how) {
  std::u32string out = code_points(text);
  if (how.lower_case) to_lower(out);
  if (how.drop_brackets) out = without_brackets(out);
  if (how.compatibility) {
    out = nfkc(out);
    if (how.lower_case) to_lower(out);  // some compatibility forms become capitals only now
  }
  if (how.drop_punctuation) punctuation_to_spaces(out, how.keep_apostrophes);
  if (how.drop_spaces || how.collapse_spaces) out = with_spaces(out, !how.drop_spaces);
  return utf8(out);
}

}  // namespace convoy
