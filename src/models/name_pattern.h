// Patterns over names of weights and modules.
#pragma once

#include <memory>
#include <string>

namespace convoy {

// "/…/" is a regular expression, anything else a glob (`*` also over dots, `?`, `[a-z]`). Either must match the whole
// name.
class NamePattern {
 public:
  // Throws a usage error on a regular expression that is malformed.
  explicit NamePattern(const std::string& text);
  ~NamePattern();
  NamePattern(NamePattern&&) noexcept;
  NamePattern& operator=(NamePattern&&) noexcept;
  bool matches(const std::string& name) const;
  static bool is_regex(const std::string& text);

 private:
  struct Compiled;
  std::string glob_;
  std::unique_ptr<Compiled> regex_;  // null for a glob
};

}  // namespace convoy
