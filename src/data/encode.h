// Samples to token ids and training targets.
#pragma once

#include <optional>
#include <string>

#include "data/source.h"
#include "text/chat.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace convoy {

struct EncodeSettings {
  std::optional<ChatFormat> chat_format;      // needed for conversations; also used for instruction/input/output if set
  std::optional<ChatTemplate> chat_template;  // goes before chat_format
  ChatOptions chat;
  // Plain text and prompts: whether the tokenizer adds its own tokens (<s>, …) in front.
  bool add_special_tokens = true;
  // Whether text and completions end in the end-of-sequence token, which is a target.
  bool append_eos = true;
  // Whether text that spells a special token becomes that token.
  bool parse_special = false;

  // Every token is a target, those of prompts and of other roles too (evaluation of whole texts).
  bool all_targets = false;

  // All settings in one line; equal exactly when the settings are.
  std::string key() const;
};

// `text`: every token is a target. prompt and completion: those of the completion and the end token. Conversations: see
// ChatEncoder. The first token of a sample is never predicted, whatever its mark.
class SampleEncoder {
 public:
  // The tokenizer must outlive the encoder. Throws a usage error when it lacks a token that the settings need.
  SampleEncoder(const Tokenizer& tokenizer, EncodeSettings settings);
  // Safe to call from many threads. Throws a data error for a sample that cannot be encoded.
  EncodedSample encode(const Sample& sample) const;

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const EncodeSettings& settings() const { return settings_; }

 private:
  EncodedSample encode_kind(const Sample& sample) const;
  std::vector<TokenId> text(std::string_view text, bool add_special) const;
  void drop_end(std::vector<TokenId>& ids) const;
  EncodedSample encode_text(const Sample& sample) const;
  EncodedSample encode_prompt(const Sample& sample) const;

  const Tokenizer& tokenizer_;
  EncodeSettings settings_;
  std::optional<ChatEncoder> chat_;
  std::optional<TemplateEncoder> template_;
  std::optional<TokenId> eos_;
};

// Targets of a sample that is read whole: marked tokens other than the first.
std::int64_t count_targets(const EncodedSample& sample);

}  // namespace convoy
