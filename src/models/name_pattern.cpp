#include "models/name_pattern.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <regex>

#include "base/error.h"

namespace convoy {

struct NamePattern::Compiled {
  std::regex expression;
};

NamePattern::NamePattern(const std::string& text) {
  if (!is_regex(text)) {
    glob_ = text;
    return;
  }
  try {
    regex_ = std::make_unique<Compiled>(Compiled{std::regex(text.substr(1, text.size() - 2))});
  } catch (const std::regex_error& failure) {
    throw usage_error(fmt::format("'{}' is no regular expression: {}", text, failure.what()));
  }
}

NamePattern::~NamePattern() = default;
NamePattern::NamePattern(NamePattern&&) noexcept = default;
NamePattern& NamePattern::operator=(NamePattern&&) noexcept = default;

bool NamePattern::is_regex(const std::string& text) {
  return text.size() >= 2 && text.front() == '/' && text.back() == '/';
}

bool NamePattern::matches(const std::string& name) const {
  if (regex_ != nullptr) return std::regex_match(name, regex_->expression);
  return ::fnmatch(glob_.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

}  // namespace convoy
