#include "config/deepspeed_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/files.h"

namespace convoy {
namespace {

constexpr int kDeepest = 64;

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  ConfigNode read() {
    if (!is_clean_utf8(text_)) throw usage_error("the DeepSpeed configuration is not UTF-8 text").at(name_);
    skip();
    // To hjson this is an object without keys; it is a file that a full disk or a wrong redirection has emptied.
    if (at_ == text_.size()) throw wrong("it is empty");
    // A file without outer braces is hjson's root object.
    const bool braces = peek() == '{';
    ConfigNode root = braces ? value(0) : members(0, false);
    skip();
    if (at_ < text_.size()) throw wrong(fmt::format("'{}' after the end of the configuration", text_[at_]));
    if (!twice_.empty()) {
      throw usage_error(fmt::format("Duplicate keys in DeepSpeed config: [{}]", fmt::join(twice_, ", ")))
          .at(name_)
          .mend("keep one of each");
    }
    return root;
  }

 private:
  Error wrong(const std::string& what) const {
    return usage_error(fmt::format("the DeepSpeed configuration cannot be read: {}", what))
        .at(fmt::format("{}:{}", name_, line_));
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  char next() {
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    return c;
  }
  bool starts(std::string_view word) const { return text_.substr(at_).starts_with(word); }

  // White space and comments.
  void skip() {
    while (at_ < text_.size()) {
      const char c = peek();
      if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        next();
      } else if (c == '#' || starts("//")) {
        while (at_ < text_.size() && peek() != '\n') next();
      } else if (starts("/*")) {
        const std::size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) throw wrong("a comment does not end");
        while (at_ < end + 2) next();
      } else {
        return;
      }
    }
  }
  void skip_commas() {
    skip();
    while (peek() == ',') {
      next();
      skip();
    }
  }

  ConfigNode value(int depth) {
    if (depth > kDeepest) throw wrong("it is nested too deeply");
    skip();
    if (at_ == text_.size()) throw wrong("a value is missing at its end");
    const char c = peek();
    if (c == '{') {
      next();
      return members(depth, true);
    }
    if (c == '[') return list(depth);
    const int line = line_;
    if (c == '"' || c == '\'') return ConfigNode::scalar(quoted(), true, line);
    const std::string word = bare();
    ConfigNode made = ConfigNode::scalar(word, false, line);
    if (word == "null" || word == "None") made.kind = ConfigNode::Kind::kNull;
    return made;
  }

  ConfigNode list(int depth) {
    ConfigNode made;
    made.kind = ConfigNode::Kind::kList;
    made.line = line_;
    next();
    skip_commas();
    while (peek() != ']') {
      if (at_ == text_.size()) throw wrong("a list does not end");
      made.items.push_back(value(depth + 1));
      skip_commas();
    }
    next();
    return made;
  }

  ConfigNode members(int depth, bool braces) {
    ConfigNode made;
    made.kind = ConfigNode::Kind::kMap;
    made.line = line_;
    skip_commas();
    while (braces ? peek() != '}' : at_ < text_.size()) {
      if (at_ == text_.size()) throw wrong("a section does not end");
      const std::string key = peek() == '"' || peek() == '\'' ? quoted() : bare_key();
      skip();
      if (peek() != ':') throw wrong(fmt::format("no ':' after the key '{}'", key));
      next();
      ConfigNode member = value(depth + 1);
      const bool known = std::any_of(made.entries.begin(), made.entries.end(),
                                     [&](const ConfigEntry& entry) { return entry.key == key; });
      if (known) {
        twice_.push_back("'" + key + "'");
      } else {
        made.entries.push_back({key, std::move(member)});
      }
      skip_commas();
    }
    if (braces) next();
    return made;
  }

  std::string bare_key() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::string_view(" \t\r\n:,{}[]").find(peek()) == std::string_view::npos) next();
    if (at_ == begin)
      throw wrong(at_ < text_.size() ? fmt::format("'{}' where a key should be", peek()) : "a key is missing");
    return std::string(text_.substr(begin, at_ - begin));
  }
  // A number, a word, or text without quotes, to the end of the line or the next delimiter.
  std::string bare() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::string_view("\r\n,{}[]#").find(peek()) == std::string_view::npos &&
           !starts("//") && !starts("/*"))
      next();
    std::string word(text_.substr(begin, at_ - begin));
    while (!word.empty() && (word.back() == ' ' || word.back() == '\t')) word.pop_back();
    if (word.empty())
      throw wrong(at_ < text_.size() ? fmt::format("'{}' where a value should be", peek()) : "a value is missing");
    return word;
  }

  std::uint32_t hex4() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = at_ < text_.size() ? next() : '\0';
      const auto digit =
          std::string_view("0123456789abcdef").find(static_cast<char>(c >= 'A' && c <= 'F' ? c + 32 : c));
      if (digit == std::string_view::npos || c == '\0') throw wrong("\\u is not followed by four hexadecimal digits");
      code = code * 16 + static_cast<std::uint32_t>(digit);
    }
    return code;
  }

  std::string quoted() {
    const char quote = next();
    std::string out;
    while (true) {
      if (at_ == text_.size() || peek() == '\n') throw wrong("a text does not end on its line");
      const char c = next();
      if (c == quote) return out;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (at_ == text_.size()) throw wrong("a text does not end");
      const char escaped = next();
      constexpr std::string_view kNames = "bfnrt";
      constexpr std::string_view kMeant = "\b\f\n\r\t";
      if (const std::size_t which = kNames.find(escaped); which != std::string_view::npos) {
        out += kMeant[which];
      } else if (escaped == 'u') {
        std::uint32_t code = hex4();
        if (code >= 0xd800 && code < 0xdc00 && starts("\\u")) {
          next();
          next();
          const std::uint32_t low = hex4();
          if (low < 0xdc00 || low > 0xdfff) throw wrong("half of a surrogate pair is missing");
          code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        if (code == 0 || (code >= 0xd800 && code < 0xe000)) throw wrong("\\u names no character");
        append_utf8(out, code);
      } else {
        out += escaped;
      }
    }
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<std::string> twice_;
};

std::optional<std::string> from_base64(const std::string& text) {
  std::string out;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    if (c == '=' || c == '\n') continue;
    std::uint32_t six = 0;
    if (c >= 'A' && c <= 'Z') {
      six = static_cast<std::uint32_t>(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      six = static_cast<std::uint32_t>(c - 'a') + 26;
    } else if (c >= '0' && c <= '9') {
      six = static_cast<std::uint32_t>(c - '0') + 52;
    } else if (c == '+' || c == '-') {
      six = 62;
    } else if (c == '/' || c == '_') {
      six = 63;
    } else {
      return std::nullopt;
    }
    bits = bits << 6 | six;
    held += 6;
    if (held < 8) continue;
    held -= 8;
    out += static_cast<char>(bits >> held & 0xff);
  }
  const std::size_t first = out.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || out[first] != '{') return std::nullopt;
  return out;
}

}  // namespace

ConfigNode parse_deepspeed_json(std::string_view text, const std::string& name) {
  return Reader(text, name).read();
}

std::string read_deepspeed_text(const std::string& given, std::string* name) {
  const std::size_t first = given.find_first_not_of(" \t\r\n");
  *name = "deepspeed";
  if (first != std::string::npos && given[first] == '{') return given;
  std::error_code failure;
  if (given.size() < 4096 && std::filesystem::is_regular_file(given, failure)) {
    *name = given;
    return read_file(given);
  }
  if (std::optional<std::string> decoded = from_base64(given)) return *decoded;
  throw usage_error(fmt::format("Expected a string path to an existing deepspeed config, or a dictionary or a valid "
                                "base64. Received: {}",
                                given))
      .at("deepspeed")
      .mend("check the path; it is relative to the folder that the command runs in");
}

}  // namespace convoy
