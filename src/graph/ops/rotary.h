// Rotary position embedding (Su et al., "RoFormer", 2021).
#pragma once

#include "graph/op.h"

namespace convoy {

// Which elements of a head's first r form a pair (a, b): (x_i, x_{i+r/2}), or (x_{2i}, x_{2i+1}).
enum class RotaryPairing : std::uint8_t { kHalf, kInterleaved };

// (packed rows [tokens, width], cos f32[positions, r/2], sin, positions i32[tokens]) → rows whose first `heads` heads
// of `head_dim` are rotated: a' = a·cos − b·sin, b' = b·cos + a·sin; the other way round when inverse (the backward
// pass).
struct Rotary final : Op {
  Rotary(std::int64_t rotated_heads, std::int64_t dim, std::int64_t rotated_dim, RotaryPairing pairs, bool back = false)
      : heads(rotated_heads), head_dim(dim), rotary_dim(rotated_dim), pairing(pairs), inverse(back) {}
  std::string_view name() const override { return "rotary"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  std::vector<Alias> aliases() const override { return {{0, 0, false}}; }
  bool cheap() const override { return true; }
  std::int64_t heads, head_dim, rotary_dim;
  RotaryPairing pairing;
  bool inverse;
};

}  // namespace convoy
