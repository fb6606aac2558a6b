// What Whisper may say next (Radford et al., 2022; the rules of its published decoding): the tokens that a prompt
// leaves open, tokens that are no speech, and times in pairs that never go back. And from its tokens to timed text.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace convoy {

// The tokens of a multilingual model's languages that the tokenizer has, in Whisper's order.
std::vector<TokenId> whisper_languages(const Tokenizer& tokenizer);

// The token whose probability at <|startoftranscript|> is that of silence: <|nospeech|>, once <|nocaptions|>.
std::optional<TokenId> no_speech_token(const Tokenizer& tokenizer);

// Tokens for times: `first` is 0 s, each next one 0.02 s later; `count` 0 where the tokenizer has none.
struct TimestampTokens {
  static constexpr double kStep = 0.02;  // seconds
  TokenId first = 0;
  std::int64_t count = 0;
  explicit TimestampTokens(const Tokenizer& tokenizer);
  bool contains(TokenId id) const { return id >= first && id < first + count; }
  double seconds(TokenId id) const { return kStep * (id - first); }
};

class WhisperRules {
 public:
  // `generation` is generation_config.json or config.json: suppress_tokens, begin_suppress_tokens and
  // max_initial_timestamp_index are read. Special tokens but for `end` are never said.
  WhisperRules(const Tokenizer& tokenizer, const Json& generation, TokenId end, bool timestamps);

  // Tokens that must come first, each one of several: what of the prompt is left to the model.
  using Opening = std::vector<std::vector<TokenId>>;
  // Sets the logits of what may not come after `made` to -infinity. Within the opening one token stays.
  void apply(const Opening& opening, std::span<const TokenId> made, std::span<float> logits) const;
  const TimestampTokens& times() const { return times_; }

 private:
  void apply_times(std::span<const TokenId> said, std::span<float> logits) const;

  TimestampTokens times_;
  bool timestamps_;
  TokenId end_;
  std::int64_t first_time_most_ = 50;  // steps
  std::vector<TokenId> never_, never_first_;
};

// A run of tokens with its times in seconds within the window.
struct TimedTokens {
  double start = 0, end = 0;
  std::vector<TokenId> tokens;  // without times
};

struct TimedWindow {
  std::vector<TimedTokens> segments;
  double consumed = 0;   // seconds after which the next window begins: where the last whole segment ended
  std::size_t said = 0;  // tokens up to there, times included
};
// `seconds` = of sound in this window.
TimedWindow split_by_times(std::span<const TokenId> said, const TimestampTokens& times, double seconds);

}  // namespace convoy
