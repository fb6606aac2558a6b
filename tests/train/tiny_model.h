// Small models and random batches for tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/engine.h"

namespace convoy::testing {

// The configurations of tiny models of every family, by name.
std::vector<std::string> tiny_families();
// Those that say something from text alone.
std::vector<std::string> tiny_text_families();
Json tiny_config(const std::string& family);

// Windows of a row and frames of a window for models that hear; random_batch makes as many, of 8 mel bins.
inline constexpr std::int64_t kAudioWindows = 1, kAudioFrames = 16, kMelBins = 8;
// Sets them in a shape where the family hears.
void set_audio(const std::string& family, TrainShape& shape);

// Fresh weights whose logits differ enough that rounding does not decide which token is the most likely.
void sharpen(ParameterStore& store);

struct RandomBatch {
  std::vector<std::int32_t> ids, targets, positions, seq_start;
  std::vector<std::uint64_t> keys;
  // A decision for each row, between two of its tokens.
  std::vector<std::int32_t> head_rows, head_labels;
  std::vector<std::uint64_t> head_keys;
  std::int64_t target_count = 0;
  // For models that hear; others do not look.
  std::vector<float> features;
  std::vector<std::int32_t> audio_rows;
  BatchView view() const {
    return {ids, targets, positions, seq_start, keys, features, audio_rows, head_rows, head_labels, head_keys};
  }
};

// Rows of packed documents of random lengths, some targets missing. `first_row` numbers the rows, so that a batch of 4
// rows equals the batches of its rows one after the other.
RandomBatch random_batch(std::int64_t rows, std::int64_t seq, std::int64_t vocab, std::int64_t first_row = 0);

}  // namespace convoy::testing
