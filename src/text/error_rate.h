// Word and character error rates, and what is done to texts before they are compared.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

// The least number of edits that make the reference out of the hypothesis, by kind. Of equally short ways the one with
// the most substitutions counts. Sums of it are corpus figures.
struct EditCounts {
  std::int64_t substitutions = 0;
  std::int64_t insertions = 0;  // units of the hypothesis that the reference lacks
  std::int64_t deletions = 0;   // units of the reference that the hypothesis lacks
  std::int64_t reference = 0;   // units of the reference

  std::int64_t errors() const { return substitutions + insertions + deletions; }
  // errors / reference, which exceeds 1 for long hypotheses; with an empty reference 0 without errors, else infinite.
  double rate() const;
  EditCounts& operator+=(const EditCounts& other);
  friend bool operator==(const EditCounts&, const EditCounts&) = default;
};

// What is compared.
enum class ErrorUnit : std::uint8_t {
  kWord,       // parted by white space
  kCharacter,  // code points, spaces among them
  kMixed,      // Han and kana characters one by one, everything else by words
};
std::string_view name_of(ErrorUnit unit);  // "word", "character", "mixed"
ErrorUnit parse_error_unit(std::string_view name);

std::vector<std::u32string> error_units(std::string_view text, ErrorUnit unit);
EditCounts count_edits(std::span<const std::u32string> reference, std::span<const std::u32string> hypothesis);
// Of two texts as they are. Invalid UTF-8 counts as U+FFFD.
EditCounts count_edits(std::string_view reference, std::string_view hypothesis, ErrorUnit unit);

// Steps in the order in which they are taken.
struct TextNormalization {
  bool lower_case = false;
  bool drop_brackets = false;  // what stands in [], <> and ()
  bool compatibility = false;  // NFKC: full width to half width, ligatures and the like
  // Marks, symbols and punctuation (Unicode classes M, S, P) to spaces; except an apostrophe between letters, where
  // keep_apostrophes is set.
  bool drop_punctuation = false;
  bool keep_apostrophes = false;
  bool drop_spaces = false;  // all; otherwise only runs of them become one, and none stay at the ends
  bool collapse_spaces = false;

  // "none"; "basic": Whisper's BasicTextNormalizer; "words": lower case, NFKC, no punctuation, apostrophes kept (don't
  // is one word); "chinese": as basic, without spaces. Throws a usage error with the nearest name.
  static TextNormalization named(std::string_view name);
  friend bool operator==(const TextNormalization&, const TextNormalization&) = default;
};

std::string normalize_text(std::string_view text, const TextNormalization& how);

}  // namespace convoy
