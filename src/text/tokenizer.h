// Tokenizers: text to ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

using TokenId = std::int32_t;

struct EncodeOptions {
  // Whether the post-processor's tokens ([gMASK]<sop>, <s>, …) are added.
  bool add_special_tokens = false;
  // Whether text that spells a special token becomes that token. Off for user text: a document cannot forge a chat
  // turn.
  bool parse_special = true;
};

// Immutable after loading, so safe to use from many threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of UTF-8 `text` to `out`. Invalid UTF-8 is encoded as its bytes where the format can, else as
  // U+FFFD.
  virtual void encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& out) const = 0;
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const {
    std::vector<TokenId> ids;
    encode(text, options, ids);
    return ids;
  }
  // The text of `ids`; each invalid UTF-8 part becomes U+FFFD. Throws a data error on an id outside the vocabulary.
  virtual std::string decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const = 0;
  // The bytes that one id stands for, without regard to its neighbours (for streaming).
  virtual std::string token_bytes(TokenId id) const = 0;
  // The id of a token by its exact written form ("<|user|>"), special or not.
  virtual std::optional<TokenId> token_to_id(std::string_view token) const = 0;
  virtual std::optional<std::string> id_to_token(TokenId id) const = 0;
  virtual bool is_special(TokenId id) const = 0;
  // One more than the largest id.
  virtual std::int64_t vocab_size() const = 0;
  // A hash of everything that decides how text is encoded; keys token caches.
  virtual std::uint64_t fingerprint() const = 0;
  virtual std::optional<TokenId> bos_id() const = 0;
  virtual std::optional<TokenId> eos_id() const = 0;
};

// Loads from a model folder (tokenizer.json, else tokenizer.model of SentencePiece or tiktoken form, with
// tokenizer_config.json / special_tokens_map.json for bos and eos) or from one such file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

// Decodes a stream of ids: holds back an incomplete trailing UTF-8 sequence.
class StreamingDecoder {
 public:
  StreamingDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_(skip_special_tokens) {}
  // The text that this id completes.
  std::string push(TokenId id);
  // What is left, invalid parts as U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<TokenId> ids_;
  std::size_t emitted_ = 0;
};

}  // namespace convoy
