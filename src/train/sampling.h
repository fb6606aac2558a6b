// How the next token is drawn from a model's logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"

namespace convoy {

struct SamplingOptions {
  double temperature = 1.0;  // 0 = always the most likely token
  std::int64_t top_k = 0;    // only the k most likely; 0 = all
  double top_p = 1.0;        // only the smallest set of tokens with this much probability
  double repetition_penalty =
      1.0;  // divides positive and multiplies negative logits of tokens already there (Keskar et al., 2019)
  std::int64_t vocab =
      0;  // only tokens below this one: a model may have more rows than its tokenizer has tokens; 0 = all
  std::uint64_t seed = 42;
};

// Draws one token from `logits`; `history` are the tokens so far.
std::int32_t sample_token(std::vector<float>& logits, const std::vector<std::int32_t>& history,
                          const SamplingOptions& options, RandomStream& random);

// Natural logarithm of the softmax of `logits` at `token`; -infinity is no token.
double log_probability(std::span<const float> logits, std::int32_t token);

}  // namespace convoy
