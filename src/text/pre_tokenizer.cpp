#include "text/pre_tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/component.h"
#include "text/unicode.h"

namespace convoy {
namespace {

using namespace char_class;

// What becomes of the delimiters, as tokenizer.json names it.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A stretch of a piece, either a match of what is looked for or a gap between matches.
struct Stretch {
  std::size_t begin;
  std::size_t end;
  bool is_match;
};

void emit(const Piece& piece, std::size_t begin, std::size_t end, std::vector<Piece>& out) {
  if (begin < end) out.push_back({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
}

// A delimiter joins its neighbour unless it follows another delimiter.
void emit_merged(const Piece& piece, std::vector<Stretch>& stretches, bool forward, std::vector<Piece>& out) {
  const std::size_t n = stretches.size();
  std::vector<Stretch> merged;
  bool previous_match = false;
  for (std::size_t i = 0; i < n; ++i) {
    const Stretch& s = stretches[forward ? i : n - 1 - i];
    if (s.is_match && !previous_match && !merged.empty()) {
      (forward ? merged.back().end : merged.back().begin) = forward ? s.end : s.begin;
    } else {
      merged.push_back(s);
    }
    previous_match = s.is_match;
  }
  for (std::size_t i = 0; i < merged.size(); ++i) {
    const Stretch& s = merged[forward ? i : merged.size() - 1 - i];
    emit(piece, s.begin, s.end, out);
  }
}

void emit_contiguous(const Piece& piece, const std::vector<Stretch>& stretches, std::vector<Piece>& out) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < stretches.size(); ++i) {
    if (i + 1 < stretches.size() && stretches[i + 1].is_match == stretches[i].is_match) continue;
    emit(piece, begin, stretches[i].end, out);
    begin = stretches[i].end;
  }
}

void emit_stretches(const Piece& piece, std::vector<Stretch>& stretches, Behavior behavior, std::vector<Piece>& out) {
  switch (behavior) {
    case Behavior::kRemoved:
    case Behavior::kIsolated:
      for (const Stretch& s : stretches) {
        if (behavior == Behavior::kIsolated || !s.is_match) emit(piece, s.begin, s.end, out);
      }
      return;
    case Behavior::kContiguous:
      return emit_contiguous(piece, stretches, out);
    case Behavior::kMergedWithPrevious:
      return emit_merged(piece, stretches, true, out);
    case Behavior::kMergedWithNext:
      return emit_merged(piece, stretches, false, out);
  }
}

// Cuts at single characters; `is_delimiter(code, class bits)`. An invalid byte never is one.
template <typename IsDelimiter>
void split_characters(const Piece& piece, IsDelimiter is_delimiter, Behavior behavior, std::vector<Piece>& out) {
  const UnicodeTable& table = UnicodeTable::get();
  std::vector<Stretch> stretches;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < piece.text.size();) {
    const CodePoint c = decode_utf8(piece.text, at);
    if (c.valid && is_delimiter(c.code, table[c.code])) {
      if (begin < at) stretches.push_back({begin, at, false});
      stretches.push_back({at, at + c.length, true});
      begin = at + c.length;
    }
    at += c.length;
  }
  if (begin < piece.text.size()) stretches.push_back({begin, piece.text.size(), false});
  emit_stretches(piece, stretches, behavior, out);
}

bool is_space(char32_t, std::uint16_t bits) {
  return (bits & kSpace) != 0;
}

bool is_punctuation(char32_t code, std::uint16_t bits) {
  const Category category = UnicodeTable::category(bits);
  const bool ascii = code < 128 && code > 32 && code != 127 && (bits & (kLetter | kNumber)) == 0;
  return ascii || (category >= Category::kPc && category <= Category::kPo);
}

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(const Piece& piece, TextArena&, std::vector<Piece>& out) const override {
    if (const auto scanner = pattern()) {
      std::vector<std::size_t> ends;
      split_by_pattern(*scanner, piece.text, ends);
      std::size_t begin = 0;
      for (const std::size_t end : ends) {
        emit(piece, begin, end, out);
        begin = end;
      }
      return;
    }
    std::vector<Span> matches;
    pattern_.find_all(piece.text, matches);
    std::vector<Stretch> stretches;
    std::size_t begin = 0;
    for (const Span& match : matches) {
      if (begin != match.begin) stretches.push_back({begin, match.begin, invert_});
      stretches.push_back({match.begin, match.end, !invert_});
      begin = match.end;
    }
    if (begin != piece.text.size()) stretches.push_back({begin, piece.text.size(), invert_});
    emit_stretches(piece, stretches, behavior_, out);
  }
  std::optional<SplitPattern> pattern() const override {
    return behavior_ == Behavior::kIsolated ? pattern_.scanner() : std::nullopt;
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// ByteLevel's own part that is not a split: a space before, and the letters unless the model takes bytes.
class PrefixSpace : public PreTokenizer {
 public:
  void apply(const Piece& piece, TextArena& arena, std::vector<Piece>& out) const override {
    if (piece.text.starts_with(' ')) return out.push_back(piece);
    arena.push_back(" " + std::string(piece.text));
    out.push_back({arena.back(), piece.at_start});
  }
};

class ByteLetters : public PreTokenizer {
 public:
  void apply(const Piece& piece, TextArena& arena, std::vector<Piece>& out) const override {
    arena.push_back(bytes_to_letters(piece.text));
    out.push_back({arena.back(), piece.at_start});
  }
};

class Characters : public PreTokenizer {
 public:
  using Test = bool (*)(char32_t, std::uint16_t);
  Characters(Test test, Behavior behavior) : test_(test), behavior_(behavior) {}
  void apply(const Piece& piece, TextArena&, std::vector<Piece>& out) const override {
    split_characters(piece, test_, behavior_, out);
  }

 private:
  Test test_;
  Behavior behavior_;
};

class Delimiter : public PreTokenizer {
 public:
  explicit Delimiter(char32_t delimiter) : delimiter_(delimiter) {}
  void apply(const Piece& piece, TextArena&, std::vector<Piece>& out) const override {
    split_characters(
        piece, [this](char32_t c, std::uint16_t) { return c == delimiter_; }, Behavior::kRemoved, out);
  }

 private:
  char32_t delimiter_;
};

// `\w+|[^\w\s]+`: runs of word characters, runs of others, spaces dropped.
class Whitespace : public PreTokenizer {
 public:
  void apply(const Piece& piece, TextArena&, std::vector<Piece>& out) const override {
    const UnicodeTable& table = UnicodeTable::get();
    enum { kGap, kWords, kOthers } kind = kGap;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < piece.text.size();) {
      const CodePoint c = decode_utf8(piece.text, at);
      const std::uint16_t bits = c.valid ? table[c.code] : std::uint16_t{0};
      const auto now = (bits & kWord) != 0 ? kWords : (bits & kSpace) != 0 ? kGap : kOthers;
      if (now != kind) {
        if (kind != kGap) emit(piece, begin, at, out);
        begin = at;
        kind = now;
      }
      at += c.length;
    }
    if (kind != kGap) emit(piece, begin, piece.text.size(), out);
  }
};

// Spaces become ▁ (or another character), which starts each piece.
class Metaspace : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(char32_t replacement, Prepend prepend, bool split) : code_(replacement), prepend_(prepend), split_(split) {
    append_utf8(mark_, replacement);
  }
  void apply(const Piece& piece, TextArena& arena, std::vector<Piece>& out) const override {
    std::string text;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += mark_;
      } else {
        text += c;
      }
    }
    const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.at_start);
    if (wanted && !text.empty() && !text.starts_with(mark_)) text.insert(0, mark_);
    arena.push_back(std::move(text));
    const Piece changed{arena.back(), piece.at_start};
    if (!split_) return out.push_back(changed);
    split_characters(
        changed, [this](char32_t c, std::uint16_t) { return c == code_; }, Behavior::kMergedWithNext, out);
  }

 private:
  char32_t code_;
  std::string mark_;
  Prepend prepend_;
  bool split_;
};

Behavior read_behavior(Component& c, std::optional<std::string> fallback) {
  const std::string name = c.text("behavior", std::move(fallback));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  c.wrong(fmt::format("has an unknown behavior '{}'", name));
}

std::unique_ptr<const PreTokenizer> read_metaspace(Component& c) {
  const char32_t replacement = c.character("replacement", char32_t{0x2581});
  c.ignore("str_rep");  // the replacement again, as older files write it
  // Files before prepend_scheme say add_prefix_space.
  const bool add_prefix = c.boolean("add_prefix_space", true);
  const std::string scheme = c.text("prepend_scheme", add_prefix ? "always" : "never");
  Metaspace::Prepend prepend = Metaspace::Prepend::kAlways;
  if (scheme == "first") {
    prepend = Metaspace::Prepend::kFirst;
  } else if (scheme == "never") {
    prepend = Metaspace::Prepend::kNever;
  } else if (scheme != "always") {
    c.wrong(fmt::format("has an unknown prepend_scheme '{}'", scheme));
  }
  return std::make_unique<Metaspace>(replacement, prepend, c.boolean("split", true));
}

std::unique_ptr<const PreTokenizer> read_one(Component& c) {
  const std::string& type = c.type();
  if (type == "Split") {
    Pattern pattern = c.pattern("pattern");
    const Behavior behavior = read_behavior(c, std::nullopt);
    return std::make_unique<Split>(std::move(pattern), behavior, c.boolean("invert", false));
  }
  if (type == "Digits") {
    const bool each = c.boolean("individual_digits", false);
    return std::make_unique<Characters>([](char32_t, std::uint16_t bits) { return (bits & kNumber) != 0; },
                                        each ? Behavior::kIsolated : Behavior::kContiguous);
  }
  if (type == "Punctuation") return std::make_unique<Characters>(is_punctuation, read_behavior(c, "Isolated"));
  if (type == "WhitespaceSplit") return std::make_unique<Characters>(is_space, Behavior::kRemoved);
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "Metaspace") return read_metaspace(c);
  if (type == "CharDelimiterSplit") return std::make_unique<Delimiter>(c.character("delimiter"));
  c.unsupported();
}

}  // namespace

Json byte_level_section(SplitPattern pattern) {
  const bool own = pattern == SplitPattern::kGpt2;  // the one that ByteLevel has itself
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", own}};
  if (own) return bytes;
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", std::string(expression_of(pattern))}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
}

PreTokenizers PreTokenizers::read(const Json& json) {
  PreTokenizers out;
  std::vector<Component> components = flatten_components(json, "pre_tokenizer", "pretokenizers");
  for (std::size_t i = 0; i < components.size(); ++i) {
    Component& c = components[i];
    if (c.type() == "ByteLevel") {
      if (c.boolean("add_prefix_space", true)) out.steps_.push_back(std::make_unique<PrefixSpace>());
      if (c.boolean("use_regex", true)) {
        Pattern gpt2 = Pattern::expression(std::string(expression_of(SplitPattern::kGpt2)));
        out.steps_.push_back(std::make_unique<Split>(std::move(gpt2), Behavior::kIsolated, false));
      }
      c.ignore("trim_offsets");
      out.byte_level_ = i + 1 == components.size();
      if (!out.byte_level_) out.steps_.push_back(std::make_unique<ByteLetters>());
    } else if (c.type() == "BertPreTokenizer") {
      out.steps_.push_back(std::make_unique<Characters>(is_space, Behavior::kRemoved));
      out.steps_.push_back(std::make_unique<Characters>(is_punctuation, Behavior::kIsolated));
    } else {
      out.steps_.push_back(read_one(c));
    }
    c.finish();
  }
  if (out.steps_.size() == 1) out.only_pattern_ = out.steps_[0]->pattern();
  return out;
}

void PreTokenizers::apply(std::vector<Piece>& pieces, std::vector<Piece>& spare, TextArena& arena) const {
  for (const auto& step : steps_) {
    spare.clear();
    for (const Piece& piece : pieces) step->apply(piece, arena, spare);
    pieces.swap(spare);
  }
}

}  // namespace convoy
