#include "text/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/component.h"
#include "text/unicode.h"

namespace convoy {
namespace {

using Normalizers = std::vector<std::unique_ptr<const Normalizer>>;

struct Form {
  std::uint16_t stable;  // the class bit of characters before which nothing changes
  int options;           // utf8proc's
};
constexpr Form kNfc{char_class::kStableNfc, UTF8PROC_STABLE | UTF8PROC_COMPOSE};
constexpr Form kNfd{char_class::kStableNfd, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE};
constexpr Form kNfkc{char_class::kStableNfkc, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT};
constexpr Form kNfkd{char_class::kStableNfkd, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};

void append_form(std::string_view part, const Form& form, std::string& out) {
  utf8proc_uint8_t* result = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(part.data()), static_cast<utf8proc_ssize_t>(part.size()),
                   &result, static_cast<utf8proc_option_t>(form.options));
  if (length < 0) throw data_error(fmt::format("text cannot be normalized: {}", utf8proc_errmsg(length)));
  out.append(reinterpret_cast<const char*>(result), static_cast<std::size_t>(length));
  std::free(result);
}

// Only the parts that change are handed to utf8proc: from the last stable character before an unstable one up to the
// next stable one. Most text has none.
void apply_form(std::string& text, const Form& form) {
  if (is_ascii(text)) return;
  const UnicodeTable& table = UnicodeTable::get();
  std::string out;
  std::size_t copied = 0, last_stable = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    if (!c.valid || (table[c.code] & form.stable) != 0) {
      last_stable = c.valid ? at : at + 1;
      at += c.length;
      continue;
    }
    std::size_t end = at + c.length;
    while (end < text.size()) {
      const CodePoint d = decode_utf8(text, end);
      if (!d.valid || (table[d.code] & form.stable) != 0) break;
      end += d.length;
    }
    out.append(text, copied, last_stable - copied);
    append_form(std::string_view(text).substr(last_stable, end - last_stable), form, out);
    copied = last_stable = at = end;
  }
  if (copied == 0) return;
  out.append(text, copied);
  text = std::move(out);
}

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(const Form& form) : form_(form) {}
  void apply(std::string& text) const override { apply_form(text, form_); }

 private:
  Form form_;
};

// Rewrites character by character; `rewrite(code, class bits, out)`. Invalid bytes stay.
template <typename Rewrite>
void map_characters(std::string& text, Rewrite rewrite) {
  const UnicodeTable& table = UnicodeTable::get();
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    if (c.valid) {
      rewrite(c.code, table[c.code], out);
    } else {
      out += text[at];
    }
    at += c.length;
  }
  text = std::move(out);
}

void lowercase(std::string& text) {
  if (is_ascii(text)) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return;
  }
  map_characters(text, [](char32_t c, std::uint16_t, std::string& out) {
    if (c == 0x130) {  // the one character whose lower case is two characters
      out += "i\xCC\x87";
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  });
}

class Lowercase : public Normalizer {
 public:
  void apply(std::string& text) const override { lowercase(text); }
};

class StripAccents : public Normalizer {
 public:
  void apply(std::string& text) const override {
    map_characters(text, [](char32_t c, std::uint16_t bits, std::string& out) {
      const Category category = UnicodeTable::category(bits);
      if (category < Category::kMn || category > Category::kMe) append_utf8(out, c);
    });
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text) const override {
    const UnicodeTable& table = UnicodeTable::get();
    std::size_t begin = text.size(), end = 0;
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint c = decode_utf8(text, at);
      const bool space = c.valid && (table[c.code] & char_class::kSpace) != 0;
      if (!space) {
        begin = std::min(begin, at);
        end = at + c.length;
      }
      at += c.length;
    }
    if (right_) text.resize(end);
    if (left_) text.erase(0, begin);
  }

 private:
  bool left_, right_;
};

class Replace : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::string& text) const override { text = pattern_.replace_all(text, content_); }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class ByteLetters : public Normalizer {
 public:
  void apply(std::string& text) const override { text = bytes_to_letters(text); }
};

// BERT's cleaning (Devlin et al., 2019, tokenization): control characters out, every space a blank, CJK characters
// between blanks, accents and case removed.
class BertNormalizer : public Normalizer {
 public:
  BertNormalizer(bool clean, bool chinese, bool accents, bool lower)
      : clean_(clean), chinese_(chinese), accents_(accents), lower_(lower) {}

  void apply(std::string& text) const override {
    if (clean_) map_characters(text, clean_character);
    if (chinese_) map_characters(text, space_chinese);
    if (accents_) {
      apply_form(text, kNfd);
      map_characters(text, [](char32_t c, std::uint16_t bits, std::string& out) {
        if (UnicodeTable::category(bits) != Category::kMn) append_utf8(out, c);
      });
    }
    if (lower_) lowercase(text);
  }

 private:
  static void clean_character(char32_t c, std::uint16_t bits, std::string& out) {
    const Category category = UnicodeTable::category(bits);
    const bool blank = c == '\t' || c == '\n' || c == '\r';
    const bool control = category == Category::kCc || category == Category::kCf || category == Category::kCo;
    if (c == 0 || c == kReplacement || (control && !blank)) return;
    append_utf8(out, blank || (bits & char_class::kSpace) != 0 ? U' ' : c);
  }
  static void space_chinese(char32_t c, std::uint16_t, std::string& out) {
    const bool chinese = (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
                         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
                         (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
                         (c >= 0x2F800 && c <= 0x2FA1F);
    if (chinese) out += ' ';
    append_utf8(out, c);
    if (chinese) out += ' ';
  }
  bool clean_, chinese_, accents_, lower_;
};

std::unique_ptr<const Normalizer> read_one(Component& c) {
  const std::string& type = c.type();
  if (type == "NFC") return std::make_unique<FormNormalizer>(kNfc);
  if (type == "NFD") return std::make_unique<FormNormalizer>(kNfd);
  if (type == "NFKC") return std::make_unique<FormNormalizer>(kNfkc);
  if (type == "NFKD") return std::make_unique<FormNormalizer>(kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "ByteLevel") return std::make_unique<ByteLetters>();
  if (type == "Prepend") return std::make_unique<Prepend>(c.text("prepend"));
  if (type == "Strip") return std::make_unique<Strip>(c.boolean("strip_left", true), c.boolean("strip_right", true));
  if (type == "Replace") {
    Pattern pattern = c.pattern("pattern");
    return std::make_unique<Replace>(std::move(pattern), c.text("content"));
  }
  if (type == "BertNormalizer") {
    const bool lower = c.boolean("lowercase", true);
    return std::make_unique<BertNormalizer>(c.boolean("clean_text", true), c.boolean("handle_chinese_chars", true),
                                            c.boolean("strip_accents", lower), lower);
  }
  c.unsupported();
}

}  // namespace

std::vector<std::unique_ptr<const Normalizer>> read_normalizers(const Json& json) {
  Normalizers out;
  for (Component& component : flatten_components(json, "normalizer", "normalizers")) {
    out.push_back(read_one(component));
    component.finish();
  }
  return out;
}

}  // namespace convoy
