// Evaluating a model on data: sums over targets that have the same bits on any number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "data/loader.h"
#include "text/tokenizer.h"
#include "train/engine.h"

namespace convoy {

// Counts the text that targets stand for: the bytes of their tokens (special tokens have none), and the words, parted
// by white space, that begin in them. A sum over tokens, so it does not depend on how the data are dealt to ranks.
class TargetText {
 public:
  // The tokenizer must outlive it.
  explicit TargetText(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void add(const Batch& batch);
  std::int64_t bytes() const { return bytes_; }
  std::int64_t words() const { return words_; }

 private:
  const std::string& text_of(TokenId id);

  const Tokenizer& tokenizer_;
  std::vector<std::string> texts_;  // of tokens met so far
  std::vector<bool> known_;
  std::int64_t bytes_ = 0, words_ = 0;
};

struct EvaluationSums {
  LossTotals totals;
  std::int64_t tokens = 0;            // without padding
  std::int64_t samples = 0;           // documents
  std::int64_t batches = 0;           // of one rank
  std::int64_t bytes = 0, words = 0;  // of the targets' text, where it was counted
  double loss() const { return totals.mean(); }
  double accuracy() const { return totals.targets > 0 ? totals.correct / totals.targets : 0; }
};

// Runs the loader to its end, which makes one micro-batch a step, and sums over all ranks in the order of the data. All
// ranks must call. `text`: counts this rank's batches; may be null on all ranks. A null communicator is one rank.
EvaluationSums evaluate_all(Engine& engine, Loader& loader, Communicator* communicator, TargetText* text = nullptr);

// A micro-batch as the engine takes it.
BatchView view(const Batch& batch);

}  // namespace convoy
