#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace convoy {
namespace {

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

std::string error_text(int code) {
  PCRE2_UCHAR8 buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

Owned<pcre2_code> compile(const std::string& expression, std::uint32_t extra_options) {
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  check(context != nullptr, "PCRE2 gave no compile context");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Owned<pcre2_code> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | extra_options, &error, &offset,
                    context.get()));
  if (!code) {
    throw data_error(
        fmt::format("the regular expression '{}' is not valid: {} at byte {}", expression, error_text(error), offset));
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without JIT, matching falls back to the interpreter
  return code;
}

// What matching needs besides the code, one per thread.
struct Matcher {
  Owned<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack> stack{pcre2_jit_stack_create(32 * 1024, 8 * 1024 * 1024, nullptr)};
  Matcher() {
    check(data && context && stack, "PCRE2 gave no match data");
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    pcre2_set_heap_limit(context.get(), 256 * 1024);  // KiB
  }
};

std::size_t next_character(std::string_view text, std::size_t at) {
  return at + (at < text.size() ? decode_utf8(text, at).length : 1);
}

}  // namespace

struct Pattern::Compiled {
  std::string expression;
  Owned<pcre2_code> valid;    // for valid UTF-8, which need not be checked again
  Owned<pcre2_code> invalid;  // steps over invalid parts

  // The first match from `from` on; false if there is none.
  bool find(std::string_view text, std::size_t from, bool is_valid, Span& match) const {
    thread_local Matcher matcher;
    const pcre2_code* code = is_valid ? valid.get() : invalid.get();
    const std::uint32_t options = is_valid ? PCRE2_NO_UTF_CHECK : 0;
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int rc = pcre2_match(code, subject, text.size(), from, options, matcher.data.get(), matcher.context.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code, subject, text.size(), from, options | PCRE2_NO_JIT, matcher.data.get(),
                       matcher.context.get());
    }
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) {
      throw data_error(fmt::format("the regular expression '{}' cannot be matched: {}", expression, error_text(rc)));
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(matcher.data.get());
    match = {offsets[0], std::max(offsets[0], offsets[1])};  // \K in a lookahead can put the end first
    return true;
  }
};

Pattern::Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::expression(const std::string& expression) {
  Pattern pattern;
  pattern.scanner_ = find_split_pattern(expression);
  if (pattern.scanner_) return pattern;
  for (std::size_t i = 0; i + 1 < expression.size(); ++i) {
    if (expression[i] != '\\') continue;
    ++i;
    if (expression[i] == 'h' || expression[i] == 'H') {
      throw data_error(fmt::format("the regular expression '{}' uses \\{}, whose meaning differs between libraries",
                                   expression, expression[i]))
          .mend("write [0-9a-fA-F] for a hexadecimal digit or [ \\t] for blanks");
    }
  }
  pattern.compiled_ = std::make_unique<Compiled>();
  pattern.compiled_->expression = expression;
  pattern.compiled_->valid = compile(expression, 0);
  pattern.compiled_->invalid = compile(expression, PCRE2_MATCH_INVALID_UTF);
  return pattern;
}

void Pattern::find_all(std::string_view text, std::vector<Span>& matches) const {
  if (scanner_) {
    std::vector<std::size_t> ends;
    split_by_pattern(*scanner_, text, ends);
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      matches.push_back({begin, end});
      begin = end;
    }
    return;
  }
  if (!compiled_) {
    if (literal_.empty()) return;
    for (std::size_t at = text.find(literal_); at != std::string_view::npos; at = text.find(literal_, at)) {
      matches.push_back({at, at + literal_.size()});
      at += literal_.size();
    }
    return;
  }
  const bool is_valid = find_invalid_utf8(text) == std::string_view::npos;
  const std::size_t none = text.size() + 1;
  Span match{0, 0};
  std::size_t from = 0, last_end = none;
  while (from <= text.size() && compiled_->find(text, from, is_valid, match)) {
    if (match.begin < from) match.begin = from;  // \K or a lookbehind with it
    if (match.end < match.begin) match.end = match.begin;
    if (match.begin == match.end) {
      if (match.begin != last_end) matches.push_back(match);
      from = next_character(text, match.end);
    } else {
      matches.push_back(match);
      from = match.end;
    }
    last_end = match.end;
  }
}

std::string Pattern::replace_all(std::string_view text, std::string_view replacement) const {
  std::vector<Span> matches;
  find_all(text, matches);
  std::string out;
  std::size_t from = 0;
  for (const Span& match : matches) {
    out += text.substr(from, match.begin - from);
    out += replacement;
    from = match.end;
  }
  out += text.substr(from);
  return out;
}

}  // namespace convoy
