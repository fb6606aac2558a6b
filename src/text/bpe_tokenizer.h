// The pipeline that tokenizer.json describes: added tokens, normalizers, pre-tokenizers, BPE, post-processor, decoder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace convoy {

struct BpeTokenizerParts {
  std::vector<std::unique_ptr<const Normalizer>> normalizers;
  PreTokenizers pre_tokenizers;
  std::unique_ptr<const BpeModel> model;
  std::vector<AddedToken> added_tokens;
  PostProcessor post_processor;
  Decoder decoder;
  std::uint64_t fingerprint = 0;
  std::optional<TokenId> bos, eos;
  // Further names by which a token can be asked for.
  std::vector<std::pair<std::string, TokenId>> aliases;
};

class BpeTokenizer : public Tokenizer {
 public:
  // Data errors: an added token whose id is another token's; a post-processor's id without a token.
  explicit BpeTokenizer(BpeTokenizerParts parts);

  using Tokenizer::encode;
  void encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& out) const override;
  std::string decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const override;
  std::string token_bytes(TokenId id) const override;
  std::optional<TokenId> token_to_id(std::string_view token) const override;
  std::optional<std::string> id_to_token(TokenId id) const override;
  bool is_special(TokenId id) const override;
  std::int64_t vocab_size() const override { return vocab_size_; }
  std::uint64_t fingerprint() const override { return parts_.fingerprint; }
  std::optional<TokenId> bos_id() const override { return parts_.bos; }
  std::optional<TokenId> eos_id() const override { return parts_.eos; }

 private:
  void add_tokens();
  void encode_raw(std::string_view text, bool at_start, bool parse_special, std::vector<TokenId>& out) const;
  void encode_normalized(std::string_view text, bool at_start, std::vector<TokenId>& out) const;
  // What the decoder gets for a token: an added token in the form that it was looked for. Throws if there is no such
  // id.
  std::string text_to_decode(TokenId id) const;

  BpeTokenizerParts parts_;
  std::vector<std::string> added_texts_;  // by index in added_tokens: normalized, if the token is
  AddedTokenSplitter raw_splitter_, normalized_splitter_;
  std::unordered_map<TokenId, std::size_t> added_by_id_;
  StringMap<TokenId> added_ids_;
  std::int64_t vocab_size_ = 0;
};

}  // namespace convoy
