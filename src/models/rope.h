// Rotary frequencies with the scaling rules that Hugging Face configurations name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "graph/ops/rotary.h"

namespace convoy {

struct RopeConfig {
  enum class Type : std::uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongRope };
  Type type = Type::kDefault;
  double theta = 10000;
  std::int64_t rotary_dim = 0;  // r, the rotated part of a head
  RotaryPairing pairing = RotaryPairing::kHalf;
  std::int64_t max_positions = 0;           // M, max_position_embeddings
  std::int64_t original_max_positions = 0;  // O, original_max_position_embeddings; M where absent
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;             // llama3 (Llama 3.1)
  double beta_fast = 32, beta_slow = 1;                         // yarn (Peng et al., 2023)
  double attention_factor = 0, mscale = 0, mscale_all_dim = 0;  // yarn, longrope; 0 = derive
  bool truncate = true;                                         // yarn
  std::vector<double> short_factor, long_factor;                // longrope

  // Whether the frequencies depend on the longest position of a batch (dynamic, longrope).
  bool depends_on_length() const { return type == Type::kDynamic || type == Type::kLongRope; }
};

struct RopeFrequencies {
  std::vector<float> inv_freq;  // r/2
  float attention_factor = 1;   // multiplies cos and sin
};

// `length` = the longest position of the batch + 1; only the types that depend on it look at it.
RopeFrequencies rope_frequencies(const RopeConfig& config, std::int64_t length);
// Fills cos and sin, [positions, r/2] each: the angle is one float32 product, as transformers computes it.
void fill_rope_tables(const RopeConfig& config, std::int64_t length, std::span<float> cosines, std::span<float> sines);

}  // namespace convoy
