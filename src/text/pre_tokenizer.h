// The pre-tokenizers of tokenizer.json: how text is cut into the pieces that the model encodes one by one.
#pragma once

#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/split_pattern.h"

namespace convoy {

struct Piece {
  std::string_view text;
  bool at_start;  // whether it begins where the whole text begins
};

// Holds the texts that pre-tokenizers write; the pieces that point to them live as long.
using TextArena = std::deque<std::string>;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(const Piece& piece, TextArena& arena, std::vector<Piece>& out) const = 0;
  // The pattern, for a step that isolates the matches of a hand-written scanner.
  virtual std::optional<SplitPattern> pattern() const { return std::nullopt; }
};

// The pre_tokenizer section of a byte-level tokenizer that cuts text at `pattern`.
Json byte_level_section(SplitPattern pattern);

class PreTokenizers {
 public:
  // ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace, CharDelimiterSplit, BertPreTokenizer
  // and Sequence of them; null gives none: text is one piece.
  static PreTokenizers read(const Json& json);

  // Replaces `pieces`, which holds one or more, by their parts. `spare` is working memory.
  void apply(std::vector<Piece>& pieces, std::vector<Piece>& spare, TextArena& arena) const;
  // Whether the last step is ByteLevel. It leaves the pieces as raw bytes; the model takes them as such.
  bool byte_level() const { return byte_level_; }
  // Set if all there is to do is to cut text at this pattern.
  std::optional<SplitPattern> only_pattern() const { return only_pattern_; }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> steps_;
  bool byte_level_ = false;
  std::optional<SplitPattern> only_pattern_;
};

}  // namespace convoy
