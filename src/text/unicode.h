// Unicode: UTF-8, character classes (Unicode 16.0, see kUnicodeVersion) and the alphabet of byte-level tokenizers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

extern const char* const kUnicodeVersion;
// The generated table; see tools/make_unicode_tables.py for its form.
extern const std::array<std::uint32_t, 4583> kUnicodeRuns;

// General categories, in the order of the generated table.
enum class Category : std::uint8_t {
  kCn,
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCs,
  kCo
};

// Bits of a character's class word; the general category is in the lowest five.
namespace char_class {
inline constexpr std::uint16_t kLetter = 1u << 5;     // \p{L}
inline constexpr std::uint16_t kNumber = 1u << 6;     // \p{N}
inline constexpr std::uint16_t kSpace = 1u << 7;      // White_Space
inline constexpr std::uint16_t kWord = 1u << 8;       // \w of UTS #18
inline constexpr std::uint16_t kStableNfc = 1u << 9;  // a starter that the form neither changes nor joins backwards
inline constexpr std::uint16_t kStableNfd = 1u << 10;
inline constexpr std::uint16_t kStableNfkc = 1u << 11;
inline constexpr std::uint16_t kStableNfkd = 1u << 12;
inline constexpr std::uint16_t kUpperOrMark = 1u << 13;  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
inline constexpr std::uint16_t kLowerOrMark = 1u << 14;  // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
}  // namespace char_class

class UnicodeTable {
 public:
  // `code` up to U+10FFFF.
  std::uint16_t operator[](char32_t code) const {
    return blocks_[(std::size_t{index_[code >> kShift]} << kShift) | (code & kMask)];
  }
  static Category category(std::uint16_t bits) { return static_cast<Category>(bits & 31u); }
  // The one table; built on first use.
  static const UnicodeTable& get();

 private:
  static constexpr unsigned kShift = 7;
  static constexpr unsigned kMask = (1u << kShift) - 1;
  UnicodeTable();
  std::array<std::uint16_t, (0x110000 >> kShift)> index_{};
  std::vector<std::uint16_t> blocks_;
};

struct CodePoint {
  char32_t code;
  std::uint32_t length;  // bytes taken; 1 for an invalid byte
  bool valid;
};

inline constexpr char32_t kReplacement = 0xFFFD;

// The character at text[at], at < text.size(). An invalid byte gives {U+FFFD, 1, false}.
CodePoint decode_utf8(std::string_view text, std::size_t at);
void append_utf8(std::string& out, char32_t code);
// The first position from `from` on that starts an invalid sequence, or npos.
std::size_t find_invalid_utf8(std::string_view text, std::size_t from = 0);
bool is_ascii(std::string_view text);
// Every maximal invalid part becomes one U+FFFD (Unicode 3.9, "U+FFFD substitution of maximal subparts").
std::string to_valid_utf8(std::string_view text);
// How many trailing bytes are the valid beginning of a character that has not ended: 0 to 3.
std::size_t incomplete_tail(std::string_view text);

// The printable letter that byte-level tokenizers write for a byte: 33–126, 161–172 and 174–255 stand for themselves,
// the others for U+0100, U+0101, … in order.
char32_t byte_letter(std::uint8_t byte);
// The byte of a letter, or -1.
int letter_byte(char32_t letter);
std::string bytes_to_letters(std::string_view bytes);
// Appends the bytes that `letters` spell; false (and nothing appended) if a character is not of the alphabet.
bool letters_to_bytes(std::string_view letters, std::string& out);

}  // namespace convoy
