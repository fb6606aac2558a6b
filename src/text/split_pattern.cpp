#include "text/split_pattern.h"

#include <array>
#include <utility>

#include "text/unicode.h"

namespace convoy {
namespace {

using namespace char_class;

constexpr std::array<std::pair<SplitPattern, std::string_view>, 4> kExpressions{{
    {SplitPattern::kGpt2, R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {SplitPattern::kCl100k,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {SplitPattern::kQwen2,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {SplitPattern::kO200k,
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
}};

// One character: its class bits and its length in bytes; length 0 at the end of the text.
struct Char {
  std::uint16_t bits = 0;
  std::uint32_t length = 0;
};

class Scanner {
 public:
  Scanner(std::string_view text, const UnicodeTable& table) : text_(text), table_(table) {}

  Char at(std::size_t p) const {
    if (p >= text_.size()) return {};
    const auto b = static_cast<std::uint8_t>(text_[p]);
    if (b < 0x80) return {table_[b], 1};
    if (b >= 0xE1 && b <= 0xEC && p + 2 < text_.size()) {  // most CJK: no second-byte exceptions
      const auto b1 = static_cast<std::uint8_t>(text_[p + 1]), b2 = static_cast<std::uint8_t>(text_[p + 2]);
      if ((b1 & 0xC0) == 0x80 && (b2 & 0xC0) == 0x80) {
        return {table_[(char32_t{b} & 0xFu) << 12 | (char32_t{b1} & 0x3Fu) << 6 | (b2 & 0x3Fu)], 3};
      }
    }
    const CodePoint c = decode_utf8(text_, p);
    return {c.valid ? table_[c.code] : std::uint16_t{0}, c.length};
  }
  bool is(std::size_t p, char c) const { return p < text_.size() && text_[p] == c; }
  bool newline(std::size_t p) const { return p < text_.size() && (text_[p] == '\n' || text_[p] == '\r'); }

  // The end of the run of characters from p on that have one of `bits`.
  std::size_t run(std::size_t p, std::uint16_t bits) const {
    for (Char c = at(p); c.length != 0 && (c.bits & bits) != 0; c = at(p)) p += c.length;
    return p;
  }
  // The end of the run of [^\s\p{L}\p{N}].
  std::size_t other_run(std::size_t p) const {
    for (Char c = at(p); c.length != 0 && (c.bits & (kSpace | kLetter | kNumber)) == 0; c = at(p)) p += c.length;
    return p;
  }
  std::size_t numbers(std::size_t p, int most) const {
    for (Char c = at(p); most > 0 && (c.bits & kNumber) != 0; c = at(p), --most) p += c.length;
    return p;
  }

  // The end of 's 't 're 've 'm 'll 'd at p, or p. `fold` ignores case, by which ſ (U+017F) is an s.
  std::size_t contraction(std::size_t p, bool fold) const {
    if (!is(p, '\'')) return p;
    const char a = lower(p + 1, fold), b = lower(p + 2, fold);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
    return fold && text_.substr(p + 1, 2) == "\xC5\xBF" ? p + 3 : p;
  }

  // `\s+(?!\S)|\s+` at a space that starts a run: all but the last one if something follows.
  std::size_t spaces(std::size_t p) const {
    std::size_t last = p, q = p;
    for (Char c = at(q); (c.bits & kSpace) != 0; c = at(q)) {
      last = q;
      q += c.length;
    }
    return q == text_.size() || last == p ? q : last;
  }
  // `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the run's last line end if it has one.
  std::size_t spaces_or_lines(std::size_t p) const {
    std::size_t last = p, q = p, line = p;
    for (Char c = at(q); (c.bits & kSpace) != 0; c = at(q)) {
      last = q;
      if (newline(q)) line = q + 1;
      q += c.length;
    }
    if (line != p) return line;
    return q == text_.size() || last == p ? q : last;
  }

 private:
  char lower(std::size_t p, bool fold) const {
    if (p >= text_.size()) return 0;
    const char c = text_[p];
    return fold && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }

  std::string_view text_;
  const UnicodeTable& table_;
};

std::size_t next_gpt2(const Scanner& s, std::size_t p) {
  if (const std::size_t end = s.contraction(p, false); end != p) return end;
  const std::size_t body = s.is(p, ' ') ? p + 1 : p;
  const Char c = s.at(body);
  if ((c.bits & kLetter) != 0) return s.run(body + c.length, kLetter);
  if ((c.bits & kNumber) != 0) return s.run(body + c.length, kNumber);
  if (c.length != 0 && (c.bits & kSpace) == 0) return s.other_run(body + c.length);
  return s.spaces(p);
}

// What cl100k, qwen2 and o200k have in common after words and numbers.
std::size_t next_other(const Scanner& s, std::size_t p, bool slash) {
  const std::size_t body = s.is(p, ' ') ? p + 1 : p;
  const Char c = s.at(body);
  if (c.length == 0 || (c.bits & (kSpace | kLetter | kNumber)) != 0) return s.spaces_or_lines(p);
  std::size_t end = s.other_run(body + c.length);
  while (s.newline(end) || (slash && s.is(end, '/'))) ++end;
  return end;
}

template <int kDigits>
std::size_t next_cl100k(const Scanner& s, std::size_t p) {
  if (const std::size_t end = s.contraction(p, true); end != p) return end;
  const Char c = s.at(p);
  if ((c.bits & kLetter) != 0) return s.run(p + c.length, kLetter);
  if ((c.bits & kNumber) != 0) return s.numbers(p, kDigits);
  if (!s.newline(p)) {
    const Char d = s.at(p + c.length);
    if ((d.bits & kLetter) != 0) return s.run(p + c.length + d.length, kLetter);
  }
  return next_other(s, p, false);
}

// U*L+ of o200k's first alternative at `p`, with what backtracking gives; p if there is no match.
std::size_t mixed_word(const Scanner& s, std::size_t p) {
  std::size_t q = p, after_last_lower = p;
  for (Char c = s.at(q); (c.bits & kUpperOrMark) != 0; c = s.at(q)) {
    q += c.length;
    if ((c.bits & kLowerOrMark) != 0) after_last_lower = q;
  }
  const std::size_t end = s.run(q, kLowerOrMark);
  return end != q ? end : after_last_lower;
}

std::size_t next_o200k(const Scanner& s, std::size_t p) {
  const Char c = s.at(p);
  const bool can_lead = (c.bits & (kLetter | kNumber)) == 0 && !s.newline(p);
  const std::size_t body = can_lead ? p + c.length : p;
  std::size_t end = mixed_word(s, body);
  if (end == body) {
    end = can_lead ? mixed_word(s, p) : p;  // a mark that cannot lead a word may be one
    if (end == p) {
      const std::size_t upper = s.run(body, kUpperOrMark);
      end = upper == body ? p : upper;
    }
  }
  if (end != p) return s.contraction(end, true);
  if ((c.bits & kNumber) != 0) return s.numbers(p, 3);
  return next_other(s, p, true);
}

template <typename Next>
void scan(std::string_view text, std::size_t p, std::size_t most, std::vector<std::size_t>& ends, Next next) {
  const Scanner scanner(text, UnicodeTable::get());
  for (; p < text.size() && most > 0; --most) {
    p = next(scanner, p);
    ends.push_back(p);
  }
}

}  // namespace

std::string_view expression_of(SplitPattern pattern) {
  return kExpressions[static_cast<std::size_t>(pattern)].second;
}

std::optional<SplitPattern> find_split_pattern(std::string_view expression) {
  for (const auto& [pattern, text] : kExpressions) {
    if (text == expression) return pattern;
  }
  return std::nullopt;
}

void split_by_pattern(SplitPattern pattern, std::string_view text, std::vector<std::size_t>& ends) {
  split_by_pattern(pattern, text, 0, text.size(), ends);
}

void split_by_pattern(SplitPattern pattern, std::string_view text, std::size_t from, std::size_t most,
                      std::vector<std::size_t>& ends) {
  const auto with = [&](auto next) { scan(text, from, most, ends, next); };
  switch (pattern) {
    case SplitPattern::kGpt2:
      return with([](const Scanner& s, std::size_t p) { return next_gpt2(s, p); });
    case SplitPattern::kCl100k:
      return with([](const Scanner& s, std::size_t p) { return next_cl100k<3>(s, p); });
    case SplitPattern::kQwen2:
      return with([](const Scanner& s, std::size_t p) { return next_cl100k<1>(s, p); });
    case SplitPattern::kO200k:
      return with([](const Scanner& s, std::size_t p) { return next_o200k(s, p); });
  }
}

}  // namespace convoy
