// Tokens that are found in the text before the model sees it: special tokens and other additions to a vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace convoy {

struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool special = false;      // dropped by skip_special_tokens, and not found when parse_special is off
  bool normalized = false;   // looked for in normalized text, in normalized form
  bool lstrip = false;       // swallows the spaces before it
  bool rstrip = false;       // swallows the spaces after it
  bool single_word = false;  // only between characters that are not word characters
};

// Finds any of several texts: the leftmost, the longest of those. A trie.
class TextMatcher {
 public:
  // Of equal texts the first wins; empty ones are never found.
  void add(std::string_view text, std::uint32_t value);
  bool empty() const { return edges_.empty(); }
  // The first match from `from` on; false if there is none.
  bool find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end, std::uint32_t& value) const;

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;  // node << 8 | byte to node; the root is 0
  std::vector<std::uint32_t> values_{kNone};                // by node
  std::array<std::uint32_t, 256> roots_{};                  // node after the first byte, 0 if none
};

// Cuts text at added tokens of one kind (normalized or not).
class AddedTokenSplitter {
 public:
  // `text` is the form to look for: the token's content, normalized if it is looked for in normalized text.
  void add(const AddedToken& token, std::string_view text);
  bool empty() const { return matcher_.empty(); }
  // Calls on_token(id) and on_text(begin, end) in order; empty texts are left out.
  void split(std::string_view text, bool parse_special, const std::function<void(TokenId)>& on_token,
             const std::function<void(std::size_t, std::size_t)>& on_text) const;

 private:
  TextMatcher matcher_;
  std::vector<AddedToken> tokens_;
};

}  // namespace convoy
