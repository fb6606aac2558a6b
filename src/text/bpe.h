// Byte-pair encoding of one piece of text (Sennrich et al., "Neural Machine Translation of Rare Words with Subword
// Units", ACL 2016), with the variants that tokenizer.json and tiktoken files use.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/pair_table.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace convoy {

struct BpeOptions {
  std::optional<std::string> unk_token;
  bool fuse_unk = false;       // neighbouring unknown characters become one unk token
  bool byte_fallback = false;  // an unknown character becomes the tokens <0xNN> of its bytes
  bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges give
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  // Pieces are raw bytes and tokens are written in the byte alphabet.
  bool byte_level = false;
};

// A merge of two tokens by their written forms. Of the pairs in a piece the one with the lowest rank is merged first,
// the leftmost among equals.
struct BpeMerge {
  TokenId left;
  TokenId right;
  std::uint32_t rank;
  TokenId result;
};

class BpeModel {
 public:
  // Merges of one rank must have one result.
  BpeModel(Vocabulary vocabulary, const std::vector<BpeMerge>& merges, BpeOptions options);

  // Appends the ids of one piece. A data error names a character that the vocabulary cannot express, or an unk token
  // that is needed and not in it.
  void encode(std::string_view piece, std::vector<TokenId>& out) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const BpeOptions& options() const { return options_; }

 private:
  void map_bytes();
  void map_characters(const std::vector<BpeMerge>& merges);
  TokenId whole_character(std::string_view bytes, const std::vector<std::uint32_t>& as_left,
                          const std::vector<std::uint32_t>& as_right) const;
  void encode_uncached(std::string_view piece, std::vector<TokenId>& out) const;
  void encode_word(std::string_view piece, std::vector<TokenId>& out) const;
  void encode_characters(std::string_view piece, std::vector<TokenId>& symbols) const;
  std::optional<TokenId> find_symbol(std::string_view character, bool first, bool last, std::string& buffer) const;
  bool add_byte_fallback(std::string_view symbol, std::vector<TokenId>& symbols) const;
  void merge(std::vector<TokenId>& symbols, std::vector<TokenId>& out) const;
  std::size_t first_symbols(std::string_view piece, TokenId* ids) const;
  void merge_bytes(std::string_view piece, std::vector<TokenId>& out) const;
  std::size_t merge_short(TokenId* ids, std::uint32_t* ranks, std::size_t count) const;
  void merge_long(const std::vector<TokenId>& symbols, std::vector<TokenId>& out) const;
  bool can_cut_words(const std::vector<BpeMerge>& merges) const;
  std::uint32_t rank_of(TokenId left, TokenId right) const {
    return (sides_[static_cast<std::size_t>(left)] & 1u) != 0 && (sides_[static_cast<std::size_t>(right)] & 2u) != 0
               ? pairs_.find(left, right)
               : PairTable::kNone;
  }

  Vocabulary vocabulary_;
  BpeOptions options_;
  PairTable pairs_;
  std::vector<TokenId> results_;     // by rank
  std::vector<std::uint8_t> sides_;  // by id: 1 it is the left of some merge, 2 the right
  std::array<TokenId, 256> byte_ids_{};
  std::vector<std::uint32_t> byte_pairs_;  // rank by left byte · 256 + right byte
  // By code point: the token of a character whose bytes always merge to it first; -1 for others. Starting from such
  // characters instead of their bytes saves most of the merges of Chinese text.
  std::vector<TokenId> characters_;
  std::array<TokenId, 256> fallback_ids_{};
  std::optional<TokenId> unk_id_;
  bool raw_bytes_ = false;  // every byte has its letter, so bytes map to ids directly
  // Set where no merge joins anything to a ▁ at its right that starts a word: pieces may then be cut there.
  bool cut_words_ = false;
  StringMap<TokenId> raw_tokens_;  // ignore_merges with raw bytes
  std::uint64_t cache_key_;
};

}  // namespace convoy
