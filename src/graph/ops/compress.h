// Gradients in fewer bits on their way between ranks.
#pragma once

#include "graph/op.h"

namespace convoy {

// x in another floating type.
struct Convert final : Op {
  explicit Convert(DType target) : to(target) {}
  std::string_view name() const override { return "convert"; }
  std::string attributes() const override { return std::string(name_of(to)); }
  std::vector<TensorSpec> infer(Specs in) const override;
  DType to;
};

// Elements that share a scale: parts of a tensor differ too much for one.
inline constexpr std::int64_t kSignBlock = 512;
// Bytes of a tensor of n elements in one bit each: a float32 scale per block, then the signs.
std::int64_t sign_bytes(std::int64_t n);

// (g, e) → (u8[sign_bytes(n)], e′): with c = g + e, the signs of c and the mean of |c| over each block; e′ = c - mean ·
// sign(c) is what was lost, to be added next time (error feedback: Seide et al., 2014; blocks: Zheng et al., 2019). e
// in place. A block that is not finite has the scale NaN, and loses nothing.
struct SignCompress final : Op {
  std::string_view name() const override { return "sign_compress"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{1, 1, true}}; }
};

// (u8[ranks · sign_bytes(n)]) → the sum over the ranks of mean · sign, in the order of the ranks, with the given shape.
struct SignSum final : Op {
  SignSum(int of_ranks, TensorSpec whole) : ranks(of_ranks), result(whole) {}
  std::string_view name() const override { return "sign_sum"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  int ranks;
  TensorSpec result;
};

}  // namespace convoy
