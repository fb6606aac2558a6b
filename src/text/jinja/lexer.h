// Template text to tokens, with the white-space rules of a Jinja environment whose trim_blocks and lstrip_blocks are
// on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace convoy::jinja {

enum class TokenKind : std::uint8_t {
  kText,           // outside of tags
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,  // decoded
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

// Throws a usage error that names `name` and the line.
std::vector<Token> tokenize(std::string_view source, const std::string& name);

// "FILE:LINE"
std::string place(const std::string& name, int line);

}  // namespace convoy::jinja
