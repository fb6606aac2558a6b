// A bigram model: the yardstick that a language model should beat.
#pragma once

#include <cstdint>
#include <span>

#include "data/split.h"
#include "data/token_data.h"

namespace convoy {

struct BigramBaseline {
  double unigram_loss = 0;  // mean negative log-likelihood per target, in nats
  double bigram_loss = 0;
  std::int64_t targets = 0;
};

// Counts token pairs in the training documents and scores the validation documents' targets. The bigram is interpolated
// with a unigram by absolute discounting, the unigram made of continuation counts (Kneser and Ney, 1995), its discount
// estimated as n1 / (n1 + 2 n2) (Ney, Essen and Kneser, 1994); the unigram alone is smoothed by adding one.
BigramBaseline bigram_baseline(const TokenData& train, std::span<const DocumentId> train_documents,
                               const TokenData& validation, std::span<const DocumentId> validation_documents,
                               std::int64_t vocab_size);

}  // namespace convoy
