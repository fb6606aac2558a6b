// What a `Split` or `Replace` looks for: a literal text or a regular expression.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/split_pattern.h"

namespace convoy {

struct Span {
  std::size_t begin;
  std::size_t end;
};

// Safe to use from many threads.
class Pattern {
 public:
  static Pattern literal(std::string text);
  // A hand-written scanner if there is one for this expression, else PCRE2 with JIT, UTF and Unicode properties, `^`
  // and
  // `$` matching at every line as in Oniguruma. A data error says what is wrong with the expression and where.
  static Pattern expression(const std::string& expression);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // Appends the matches, front to back, without overlap; empty ones too, but none right after a match. Nothing matches
  // across invalid UTF-8. A data error if matching exceeds PCRE2's limits.
  void find_all(std::string_view text, std::vector<Span>& matches) const;
  // Set if the pattern is one of the hand-written scanners, whose matches cover every text.
  std::optional<SplitPattern> scanner() const { return scanner_; }
  // Every match replaced by `replacement`.
  std::string replace_all(std::string_view text, std::string_view replacement) const;

 private:
  struct Compiled;
  Pattern();
  std::string literal_;
  std::optional<SplitPattern> scanner_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace convoy
