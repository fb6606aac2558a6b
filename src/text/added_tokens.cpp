#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace convoy {
namespace {

// The character that ends at `end` > 0.
CodePoint character_before(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<std::uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  const CodePoint c = decode_utf8(text, at);
  return c.valid && at + c.length == end ? c : CodePoint{kReplacement, 1, false};
}

bool has_class(const CodePoint& c, std::uint16_t bit) {
  return c.valid && (UnicodeTable::get()[c.code] & bit) != 0;
}

bool is_single_word(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin == 0 || !has_class(character_before(text, begin), char_class::kWord)) &&
         (end == text.size() || !has_class(decode_utf8(text, end), char_class::kWord));
}

std::size_t skip_spaces_left(std::string_view text, std::size_t end) {
  while (end > 0) {
    const CodePoint c = character_before(text, end);
    if (!has_class(c, char_class::kSpace)) break;
    end -= c.length;
  }
  return end;
}

std::size_t skip_spaces_right(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const CodePoint c = decode_utf8(text, begin);
    if (!has_class(c, char_class::kSpace)) break;
    begin += c.length;
  }
  return begin;
}

}  // namespace

void TextMatcher::add(std::string_view text, std::uint32_t value) {
  if (text.empty()) return;
  std::uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    const auto next = static_cast<std::uint32_t>(values_.size());
    const auto [edge, fresh] = edges_.try_emplace(std::uint64_t{node} << 8 | byte, next);
    if (fresh) {
      values_.push_back(kNone);
      if (node == 0) roots_[byte] = next;
    }
    node = edge->second;
  }
  if (values_[node] == kNone) values_[node] = value;
}

bool TextMatcher::find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end,
                       std::uint32_t& value) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    std::uint32_t node = roots_[static_cast<std::uint8_t>(text[at])];
    if (node == 0) continue;
    bool found = false;
    for (std::size_t p = at + 1;; ++p) {
      if (values_[node] != kNone) {
        found = true;
        begin = at;
        end = p;
        value = values_[node];
      }
      if (p == text.size()) break;
      const auto edge = edges_.find(std::uint64_t{node} << 8 | static_cast<std::uint8_t>(text[p]));
      if (edge == edges_.end()) break;
      node = edge->second;
    }
    if (found) return true;
  }
  return false;
}

void AddedTokenSplitter::add(const AddedToken& token, std::string_view text) {
  matcher_.add(text, static_cast<std::uint32_t>(tokens_.size()));
  tokens_.push_back(token);
}

void AddedTokenSplitter::split(std::string_view text, bool parse_special, const std::function<void(TokenId)>& on_token,
                               const std::function<void(std::size_t, std::size_t)>& on_text) const {
  std::size_t done = 0, from = 0, begin = 0, end = 0;
  std::uint32_t index = 0;
  while (matcher_.find(text, from, begin, end, index)) {
    from = end;
    const AddedToken& token = tokens_[index];
    if ((token.special && !parse_special) || (token.single_word && !is_single_word(text, begin, end))) continue;
    // The token before may have swallowed the spaces already, and with them even this token's own text.
    if (token.lstrip) begin = std::max(skip_spaces_left(text, begin), done);
    if (token.rstrip) end = skip_spaces_right(text, end);
    if (done < begin) on_text(done, begin);
    on_token(token.id);
    done = end;
  }
  if (done < text.size()) on_text(done, text.size());
}

}  // namespace convoy
