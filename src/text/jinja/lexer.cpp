#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/unicode.h"

namespace convoy::jinja {
namespace {

bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : name_(name) {
    source_.reserve(source.size());
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        source_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        source_ += source[i];
      }
    }
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) outside();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, int line) const {
    throw usage_error(what).at(place(name_, line)).mend("mend the chat template, or set chat_format");
  }
  bool looking_at(std::string_view text) const { return source_.compare(at_, text.size(), text) == 0; }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }
  // Past the end of a tag: "-" takes all white space that follows, and a block's end the newline, unless "+" keeps it.
  void after_tag(char sign, bool trims_newline) {
    std::size_t to = at_;
    if (sign == '-') {
      while (to < source_.size() && is_blank(source_[to])) ++to;
    } else if (sign != '+' && trims_newline && to < source_.size() && source_[to] == '\n') {
      ++to;
    }
    line_start_ = to > 0 && source_[to - 1] == '\n';
    advance(to);
  }

  // Text up to the next tag, and the tag's beginning.
  void outside() {
    std::size_t tag = at_;
    while (tag + 1 < source_.size() &&
           !(source_[tag] == '{' && (source_[tag + 1] == '%' || source_[tag + 1] == '{' || source_[tag + 1] == '#')))
      ++tag;
    if (tag + 1 >= source_.size()) {
      add(TokenKind::kText, source_.substr(at_));
      return advance(source_.size());
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    std::string text = source_.substr(at_, tag - at_);
    if (sign == '-') {
      while (!text.empty() && is_blank(text.back())) text.pop_back();
    } else if (sign != '+' && kind != '{') {
      // A block or comment that stands first in its line takes the blanks before it.
      const std::size_t newline = text.rfind('\n');
      const std::size_t first = newline == std::string::npos ? 0 : newline + 1;
      const bool whole_line = newline != std::string::npos || line_start_;
      if (whole_line && std::all_of(text.begin() + static_cast<std::ptrdiff_t>(first), text.end(), is_blank))
        text.resize(first);
    }
    if (!text.empty()) add(TokenKind::kText, std::move(text));
    advance(tag);
    const std::size_t inside = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
    if (kind == '#') return comment(inside);
    if (kind == '%' && raw(inside)) return;
    add(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
    advance(inside);
    expression(kind == '%');
  }

  void comment(std::size_t inside) {
    const std::size_t end = source_.find("#}", inside);
    if (end == std::string::npos) fail("a comment '{#' without its end '#}'", line_);
    const char sign = end > inside ? source_[end - 1] : ' ';
    advance(end + 2);
    after_tag(sign, true);
  }

  // {% raw %}…{% endraw %}; false if the tag is another.
  bool raw(std::size_t inside) {
    const auto word = [&](std::size_t from, std::string_view name, std::size_t* end, char* sign) {
      while (from < source_.size() && is_blank(source_[from])) ++from;
      if (source_.compare(from, name.size(), name) != 0) return false;
      from += name.size();
      while (from < source_.size() && is_blank(source_[from])) ++from;
      *sign = ' ';
      if (from < source_.size() && (source_[from] == '-' || source_[from] == '+')) *sign = source_[from++];
      if (source_.compare(from, 2, "%}") != 0) return false;
      *end = from + 2;
      return true;
    };
    std::size_t begin = 0, end = 0;
    char sign = ' ';
    if (!word(inside, "raw", &begin, &sign)) return false;
    const int first_line = line_;
    advance(begin);
    after_tag(sign, true);
    for (std::size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      std::size_t from = tag + 2;
      const char before = from < source_.size() ? source_[from] : ' ';
      if (before == '-' || before == '+') ++from;
      if (!word(from, "endraw", &end, &sign)) continue;
      std::string text = source_.substr(at_, tag - at_);
      if (before == '-') {
        while (!text.empty() && is_blank(text.back())) text.pop_back();
      } else if (before != '+') {
        const std::size_t newline = text.rfind('\n');
        if (newline != std::string::npos &&
            std::all_of(text.begin() + static_cast<std::ptrdiff_t>(newline), text.end(), is_blank))
          text.resize(newline + 1);
      }
      if (!text.empty()) add(TokenKind::kText, std::move(text));
      advance(end);
      after_tag(sign, true);
      return true;
    }
    fail("'raw' without 'endraw'", first_line);
  }

  // The tokens of one tag, up to and with its end.
  void expression(bool block) {
    const int first_line = line_;
    const std::string_view end = block ? "%}" : "}}";
    std::string open;  // brackets that are not closed: inside of them the tag cannot end
    while (at_ < source_.size()) {
      const char c = source_[at_];
      if (is_blank(c)) {
        advance(at_ + 1);
        continue;
      }
      const bool signed_end = (c == '-' || (c == '+' && block)) && source_.compare(at_ + 1, 2, end) == 0;
      if (open.empty() && (signed_end || looking_at(end))) {
        add(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
        advance(at_ + (signed_end ? 3 : 2));
        return after_tag(signed_end ? c : ' ', block);
      }
      if (is_digit(c)) {
        number();
      } else if (starts_name(c)) {
        std::size_t to = at_;
        while (to < source_.size() && (starts_name(source_[to]) || is_digit(source_[to]))) ++to;
        add(TokenKind::kName, source_.substr(at_, to - at_));
        advance(to);
      } else if (c == '\'' || c == '"') {
        quoted(c);
      } else {
        symbol(open);
      }
    }
    fail(fmt::format("a tag without its end '{}'", end), first_line);
  }

  void symbol(std::string& open) {
    static constexpr std::array<std::string_view, 6> kLong{"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view text : kLong) {
      if (!looking_at(text)) continue;
      add(TokenKind::kOperator, std::string(text));
      return advance(at_ + 2);
    }
    const char c = source_[at_];
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos)
      fail(fmt::format("unexpected character '{}'", std::string(1, c)), line_);
    if (c == '(' || c == '[' || c == '{') open += c;
    if (c == ')' || c == ']' || c == '}') {
      const char expected = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != expected) fail(fmt::format("'{}' closes nothing", c), line_);
      open.pop_back();
    }
    add(TokenKind::kOperator, std::string(1, c));
    advance(at_ + 1);
  }

  void number() {
    std::size_t to = at_;
    const auto digits = [&] {
      while (to < source_.size() && (is_digit(source_[to]) || (source_[to] == '_' && to > at_))) ++to;
    };
    digits();
    bool real = false;
    if (to + 1 < source_.size() && source_[to] == '.' && is_digit(source_[to + 1])) {
      real = true;
      ++to;
      digits();
    }
    if (to < source_.size() && (source_[to] == 'e' || source_[to] == 'E')) {
      std::size_t next = to + 1;
      if (next < source_.size() && (source_[next] == '+' || source_[next] == '-')) ++next;
      if (next < source_.size() && is_digit(source_[next])) {
        real = true;
        to = next;
        digits();
      }
    }
    std::string text = source_.substr(at_, to - at_);
    std::erase(text, '_');
    add(real ? TokenKind::kFloat : TokenKind::kInteger, std::move(text));
    advance(to);
  }

  void quoted(char quote) {
    std::string text;
    const int first_line = line_;
    std::size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\') {
        text += source_[i];
        continue;
      }
      if (++i >= source_.size()) break;
      i = escape(i, text);
    }
    if (i >= source_.size()) fail("a string without its closing quote", first_line);
    add(TokenKind::kString, std::move(text));
    advance(i + 1);
  }

  // Python's escapes; `i` is at the character after the backslash. Returns the place of the last one taken.
  std::size_t escape(std::size_t i, std::string& text) const {
    static constexpr std::string_view kFrom = "ntrabfv0\\'\"", kTo{"\n\t\r\a\b\f\v\0\\'\"", 11};
    const char c = source_[i];
    if (c == '\n') return i;
    if (const std::size_t known = kFrom.find(c); known != std::string_view::npos) {
      text += kTo[known];
      return i;
    }
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      text += '\\';
      text += c;
      return i;
    }
    char32_t code = 0;
    for (std::size_t d = 1; d <= digits; ++d) {
      const char h = i + d < source_.size() ? source_[i + d] : ' ';
      const int value = is_digit(h)            ? h - '0'
                        : h >= 'a' && h <= 'f' ? h - 'a' + 10
                        : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                               : -1;
      if (value < 0) fail(fmt::format("'\\{}' needs {} hexadecimal digits", c, digits), line_);
      code = code * 16 + static_cast<char32_t>(value);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) fail("an escape that is no character", line_);
    append_utf8(text, code);
    return i + digits;
  }

  const std::string& name_;
  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

std::string place(const std::string& name, int line) {
  return fmt::format("{}:{}", name, line);
}

}  // namespace convoy::jinja
