#include "text/unicode.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace convoy {
namespace {

using namespace char_class;

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// The symbols with the property Other_Alphabetic; its other members are marks, and two joiners that \w has by itself.
bool is_word_symbol(char32_t c) {
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

std::uint16_t class_word(char32_t code, std::uint32_t run) {
  const auto category = static_cast<Category>(run & 31u);
  const bool letter = category >= Category::kLu && category <= Category::kLo;
  const bool mark = category >= Category::kMn && category <= Category::kMe;
  const bool number = category >= Category::kNd && category <= Category::kNo;
  const bool caseless = category == Category::kLm || category == Category::kLo || mark;
  std::uint32_t bits = run & 31u;
  if (letter) bits |= kLetter;
  if (number) bits |= kNumber;
  if (is_white_space(code)) bits |= kSpace;
  if (letter || mark || category == Category::kNd || category == Category::kNl || category == Category::kPc ||
      is_word_symbol(code)) {
    bits |= kWord;
  }
  bits |= ((run >> 5) & 15u) << 9;
  if (caseless || category == Category::kLu || category == Category::kLt) bits |= kUpperOrMark;
  if (caseless || category == Category::kLl) bits |= kLowerOrMark;
  return static_cast<std::uint16_t>(bits);
}

struct ByteAlphabet {
  std::array<char32_t, 256> letters{};
  std::array<std::int16_t, 0x144> bytes{};
  ByteAlphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      letters[b] = itself ? b : next++;
      bytes[letters[b]] = static_cast<std::int16_t>(b);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet table;
  return table;
}

// What a lead byte asks for: the sequence's length (0: not a lead byte) and the bounds of its second byte.
struct Lead {
  std::uint32_t length;
  std::uint8_t low, high;
};

Lead lead_of(std::uint8_t b) {
  if (b >= 0xC2 && b <= 0xDF) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b >= 0xE1 && b <= 0xEF) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b >= 0xF1 && b <= 0xF3) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// How many bytes from `at` on are a valid sequence or the valid beginning of one; at least 1.
std::uint32_t valid_prefix(std::string_view text, std::size_t at, const Lead& lead) {
  std::uint32_t n = 1;
  while (n < lead.length && at + n < text.size()) {
    const auto b = static_cast<std::uint8_t>(text[at + n]);
    if (n == 1 ? (b < lead.low || b > lead.high) : (b & 0xC0) != 0x80) break;
    ++n;
  }
  return n;
}

}  // namespace

UnicodeTable::UnicodeTable() {
  constexpr std::size_t kBlock = std::size_t{1} << kShift;
  std::map<std::vector<std::uint16_t>, std::uint16_t> known;
  std::vector<std::uint16_t> block(kBlock);
  std::size_t run = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (run + 1 < kUnicodeRuns.size() && (kUnicodeRuns[run + 1] >> 11) == code) ++run;
    block[code & kMask] = class_word(code, kUnicodeRuns[run]);
    if ((code & kMask) != kMask) continue;
    const auto [entry, fresh] = known.try_emplace(block, static_cast<std::uint16_t>(known.size()));
    if (fresh) blocks_.insert(blocks_.end(), block.begin(), block.end());
    index_[code >> kShift] = entry->second;
  }
}

const UnicodeTable& UnicodeTable::get() {
  static const UnicodeTable table;
  return table;
}

CodePoint decode_utf8(std::string_view text, std::size_t at) {
  const auto first = static_cast<std::uint8_t>(text[at]);
  if (first < 0x80) return {first, 1, true};
  const Lead lead = lead_of(first);
  if (lead.length == 0 || valid_prefix(text, at, lead) < lead.length) return {kReplacement, 1, false};
  char32_t code = first & (0xFFu >> (lead.length + 1));
  for (std::uint32_t i = 1; i < lead.length; ++i)
    code = (code << 6) | (static_cast<std::uint8_t>(text[at + i]) & 0x3Fu);
  return {code, lead.length, true};
}

void append_utf8(std::string& out, char32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

std::size_t find_invalid_utf8(std::string_view text, std::size_t from) {
  std::size_t at = from;
  while (at < text.size()) {
    if (at + 8 <= text.size()) {
      std::uint64_t eight = 0;
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    const auto first = static_cast<std::uint8_t>(text[at]);
    if (first < 0x80) {
      ++at;
      continue;
    }
    const Lead lead = lead_of(first);
    if (lead.length == 0 || valid_prefix(text, at, lead) < lead.length) return at;
    at += lead.length;
  }
  return std::string_view::npos;
}

bool is_ascii(std::string_view text) {
  std::size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, text.data() + at, 8);
    if ((eight & 0x8080808080808080u) != 0) return false;
  }
  return std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0;
  while (true) {
    const std::size_t bad = find_invalid_utf8(text, at);
    out += text.substr(at, bad == std::string_view::npos ? bad : bad - at);
    if (bad == std::string_view::npos) return out;
    append_utf8(out, kReplacement);
    at = bad + valid_prefix(text, bad, lead_of(static_cast<std::uint8_t>(text[bad])));
  }
}

std::size_t incomplete_tail(std::string_view text) {
  for (std::size_t n = 1; n <= 3 && n <= text.size(); ++n) {
    const std::size_t at = text.size() - n;
    const Lead lead = lead_of(static_cast<std::uint8_t>(text[at]));
    if (lead.length == 0) continue;
    return lead.length > n && valid_prefix(text, at, lead) == n ? n : 0;
  }
  return 0;
}

char32_t byte_letter(std::uint8_t byte) {
  return alphabet().letters[byte];
}

int letter_byte(char32_t letter) {
  return letter < alphabet().bytes.size() ? alphabet().bytes[letter] : -1;
}

std::string bytes_to_letters(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 2);
  for (const char c : bytes) append_utf8(out, byte_letter(static_cast<std::uint8_t>(c)));
  return out;
}

bool letters_to_bytes(std::string_view letters, std::string& out) {
  const std::size_t start = out.size();
  for (std::size_t at = 0; at < letters.size();) {
    const CodePoint c = decode_utf8(letters, at);
    const int byte = c.valid ? letter_byte(c.code) : -1;
    if (byte < 0) {
      out.resize(start);
      return false;
    }
    out += static_cast<char>(byte);
    at += c.length;
  }
  return true;
}

}  // namespace convoy
