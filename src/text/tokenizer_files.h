// The file forms of BPE tokenizers. All errors are data errors that name the file (`name`) and the component.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "text/bpe_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace convoy {

// A Hugging Face tokenizer.json with a BPE model. What is not supported in it is an error.
BpeTokenizerParts read_tokenizer_json(std::string_view text, const std::string& name);

// A vocab.json and a merges.txt, as GPT-1, GPT-2, Whisper and Qwen2 were published; `tokenizer_class` says which of
// their pipelines it is ("GPT2Tokenizer", "Qwen2TokenizerFast", …).
BpeTokenizerParts read_vocab_and_merges(std::string_view vocab, const std::string& vocab_name, std::string_view merges,
                                        const std::string& merges_name, const TokenizerConfig& config);

// Lines of "base64(bytes) rank". The family, GLM-4 or Llama-3, is known by tokenizer_class or by the number of ranks;
// any other needs its special tokens in `config`.
BpeTokenizerParts read_tiktoken(std::string_view text, const std::string& name, const TokenizerConfig& config);
bool is_tiktoken(std::string_view text);

// A serialized SentencePiece model.
std::unique_ptr<Tokenizer> read_sentencepiece(std::string_view bytes, const std::string& name,
                                              const TokenizerConfig& config);

// Adds the tokens that the configuration names and the tokenizer lacks, and sets bos and eos. Tokens that cannot be
// added (no id, or another's) are warned of.
void apply_config(BpeTokenizerParts& parts, const TokenizerConfig& config);

}  // namespace convoy
