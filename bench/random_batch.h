// Batches of random tokens, and of random features for models that hear.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "train/engine.h"

namespace convoy::bench {

constexpr double kFrameSeconds = 0.01;  // of a log-mel frame

struct RandomBatch {
  std::vector<std::int32_t> ids, targets, positions, seq_start, audio_rows;
  std::vector<std::uint64_t> keys;
  std::vector<float> features;
  double target_count = 0;
  BatchView view() const { return {ids, targets, positions, seq_start, keys, features, audio_rows}; }
};

// How the rows of a micro-batch are made up: for models that hear, one whole window of audio each, its places in the
// text, if it has any, before the labels.
struct RowShape {
  RowShape(const Model& model, std::int64_t row_count, std::int64_t text_tokens)
      : rows(row_count), audio(model.audio()), seq(text_tokens), vocab(model.vocab_size()) {
    if (!audio) return;
    frames = audio->frames;
    if (audio->audio_token < 0) return;
    places = ((frames + 1) / 2) / (audio->frames_per_token / 2);
    seq = places + text_tokens;
  }
  double audio_seconds() const { return static_cast<double>(rows * frames) * kFrameSeconds; }

  std::int64_t rows;
  std::optional<AudioInput> audio;
  std::int64_t seq, vocab, places = 0, frames = 0;
};

// Every token is a target but those at the places of audio and, where text follows itself, the first.
inline RandomBatch random_batch(const RowShape& shape, std::uint64_t stream) {
  RandomStream random(1, stream);
  RandomBatch batch;
  const auto below = static_cast<std::uint64_t>(shape.vocab);
  const bool apart = shape.audio && shape.places == 0;  // an encoder's text: labels are not the next inputs
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t t = 0; t < shape.seq; ++t) {
      const bool place = t < shape.places;
      const auto token = static_cast<std::int32_t>(random.below(below));
      batch.ids.push_back(place ? static_cast<std::int32_t>(shape.audio->audio_token) : token);
      batch.audio_rows.push_back(place ? static_cast<std::int32_t>(r * shape.places + t) : -1);
      batch.positions.push_back(static_cast<std::int32_t>(t));
      batch.seq_start.push_back(static_cast<std::int32_t>(r * shape.seq));
      batch.keys.push_back(static_cast<std::uint64_t>(r * shape.seq + t));
    }
  }
  for (std::int64_t i = 0; i < shape.rows * shape.seq; ++i) {
    const std::int64_t t = i % shape.seq;
    const bool target = apart || (t + 1 < shape.seq && t + 1 >= shape.places);
    const std::int32_t next = apart ? static_cast<std::int32_t>(random.below(below))
                                    : (t + 1 < shape.seq ? batch.ids[static_cast<std::size_t>(i) + 1] : -1);
    batch.targets.push_back(target ? next : -1);
    batch.target_count += target ? 1 : 0;
  }
  if (!shape.audio) return batch;
  // One block of numbers again and again: drawing millions takes longer than a step.
  std::vector<float> block(std::size_t{1} << 16);
  for (float& v : block) v = 0.5F * random.normal();
  const auto count = static_cast<std::size_t>(shape.rows * shape.frames * shape.audio->mel_bins);
  while (batch.features.size() < count) {
    const auto more = static_cast<std::ptrdiff_t>(std::min(block.size(), count - batch.features.size()));
    batch.features.insert(batch.features.end(), block.begin(), block.begin() + more);
  }
  return batch;
}

}  // namespace convoy::bench
