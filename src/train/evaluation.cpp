#include "train/evaluation.h"

#include "train/rank_sums.h"

namespace convoy {
namespace {

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Words that begin in `text`, which follows `before`.
std::int64_t word_begins(const std::string& text, char before) {
  std::int64_t words = 0;
  for (const char c : text) {
    if (!is_space(c) && is_space(before)) ++words;
    before = c;
  }
  return words;
}

}  // namespace

BatchView view(const Batch& batch) {
  return {batch.input_ids,   batch.targets,        batch.positions,     batch.seq_start,
          batch.token_keys,  batch.audio_features, batch.audio_rows,    batch.head_rows,
          batch.head_labels, batch.head_keys,      batch.audio_lengths, batch.bucket};
}

const std::string& TargetText::text_of(TokenId id) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= texts_.size()) {
    texts_.resize(at + 1);
    known_.resize(at + 1);
  }
  if (!known_[at]) {
    known_[at] = true;
    if (!tokenizer_.is_special(id)) texts_[at] = tokenizer_.token_bytes(id);
  }
  return texts_[at];
}

void TargetText::add(const Batch& batch) {
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    if (batch.targets[i] < 0) continue;
    const std::string text = text_of(batch.targets[i]);
    bytes_ += static_cast<std::int64_t>(text.size());
    // A word goes on from the token before, unless that one is no target of the same text: there a new one begins. What
    // is before the first token of a row's segment cannot be seen, and is taken for a target.
    const bool first = static_cast<std::size_t>(batch.seq_start[i]) == i;
    const bool goes_on = first || batch.targets[i - 1] >= 0;
    const std::string& before = text_of(batch.input_ids[i]);
    words_ += word_begins(text, goes_on && !before.empty() ? before.back() : ' ');
  }
}

EvaluationSums evaluate_all(Engine& engine, Loader& loader, Communicator* communicator, TargetText* text) {
  EvaluationSums sums;
  while (true) {
    const std::optional<Step> next = loader.next();
    if (!next) break;
    const Step& step = *next;
    for (const Batch& batch : step.micro_batches) {
      engine.start_evaluate(view(batch));
      if (text != nullptr) text->add(batch);
    }
    ++sums.batches;
    sums.tokens += step.global_tokens;
    sums.samples += step.global_samples;
  }
  sums.totals = sum_over_ranks(communicator, engine.take_losses(), 1).totals;
  if (text != nullptr) {
    const std::vector<double> counts =
        sum_over_ranks(communicator, {static_cast<double>(text->bytes()), static_cast<double>(text->words())});
    sums.bytes = static_cast<std::int64_t>(counts[0]);
    sums.words = static_cast<std::int64_t>(counts[1]);
  }
  return sums;
}

}  // namespace convoy
