// Training of byte-level BPE vocabularies from text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/split_pattern.h"
#include "text/tokenizer.h"

namespace convoy {

struct BpeTrainerProgress {
  enum class Stage { kCounting, kMerging } stage;
  std::int64_t done;   // bytes of text, or tokens of the vocabulary
  std::int64_t total;  // tokens wanted; 0 while counting, when the end is not known
};

struct BpeTrainerOptions {
  // How text is cut before pairs are counted; kQwen2 also normalizes to NFC, as those models do.
  SplitPattern pattern = SplitPattern::kGpt2;
  std::int64_t vocab_size = 32000;  // bytes, merges and special tokens together
  std::int64_t min_frequency = 2;   // pairs that are rarer are not merged
  // Get the last ids, in order. Where a text has one, nothing is learned from it.
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  // Named in tokenizer_config.json; each one of special_tokens. Without a name eos is <|endoftext|> if that is special.
  std::optional<std::string> bos_token, eos_token, pad_token;
  std::function<void(const BpeTrainerProgress&)> progress;
};

// "gpt2", "llama3" (or "cl100k"), "qwen2", "o200k". A usage error names the nearest of them.
SplitPattern parse_split_pattern(std::string_view name);

struct TrainedBpe {
  std::vector<std::string> tokens;                  // by id, as bytes, without the special tokens
  std::vector<std::pair<TokenId, TokenId>> merges;  // in the order of training
};

// Gives the next text, or false at the end.
using TextSource = std::function<bool(std::string&)>;

// Repeatedly merges the pair of tokens that is most frequent; of equal counts the one with the lower left id, then the
// lower right id. The result does not depend on the number of threads or on the order of the texts. It has fewer tokens
// than asked for if the text gives no more pairs. Usage errors: a vocabulary too small for the 256 bytes and the
// special tokens; names that are not special tokens.
TrainedBpe train_bpe(const TextSource& next_text, const BpeTrainerOptions& options);

// Writes tokenizer.json and tokenizer_config.json, in the form of Hugging Face, into `folder`, which is made if needed.
void write_tokenizer(const TrainedBpe& trained, const BpeTrainerOptions& options, const std::filesystem::path& folder);

}  // namespace convoy
