// A tokenizer for tests: one id per byte, and the given special tokens behind them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "text/tokenizer.h"

namespace convoy {

class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(std::vector<std::string> specials, std::string eos = "<eos>", std::int64_t vocab = 0)
      : specials_(std::move(specials)), eos_(std::move(eos)), vocab_(vocab) {}

  using Tokenizer::encode;
  void encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& out) const override {
    if (options.add_special_tokens && bos_id()) out.push_back(*bos_id());
    while (!text.empty()) {
      std::size_t taken = 0;
      for (std::size_t i = 0; options.parse_special && taken == 0 && i < specials_.size(); ++i) {
        if (!text.starts_with(specials_[i])) continue;
        out.push_back(256 + static_cast<TokenId>(i));
        taken = specials_[i].size();
      }
      if (taken == 0) {
        out.push_back(static_cast<unsigned char>(text[0]));
        taken = 1;
      }
      text.remove_prefix(taken);
    }
  }
  std::string decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const override {
    std::string text;
    for (const TokenId id : ids) {
      if (!skip_special_tokens || id < 256) text += token_bytes(id);
    }
    return text;
  }
  std::string token_bytes(TokenId id) const override {
    return id < 256 ? std::string(1, static_cast<char>(id)) : specials_.at(static_cast<std::size_t>(id - 256));
  }
  std::optional<TokenId> token_to_id(std::string_view token) const override {
    for (std::size_t i = 0; i < specials_.size(); ++i) {
      if (specials_[i] == token) return 256 + static_cast<TokenId>(i);
    }
    return std::nullopt;
  }
  std::optional<std::string> id_to_token(TokenId id) const override { return token_bytes(id); }
  bool is_special(TokenId id) const override { return id >= 256; }
  std::int64_t vocab_size() const override {
    return vocab_ > 0 ? vocab_ : 256 + static_cast<std::int64_t>(specials_.size());
  }
  std::uint64_t fingerprint() const override {
    std::string all = eos_;
    for (const std::string& special : specials_) all += special;
    return hash64(all);
  }
  std::optional<TokenId> bos_id() const override { return token_to_id("<bos>"); }
  std::optional<TokenId> eos_id() const override { return token_to_id(eos_); }

 private:
  std::vector<std::string> specials_;
  std::string eos_;
  std::int64_t vocab_;
};

}  // namespace convoy
