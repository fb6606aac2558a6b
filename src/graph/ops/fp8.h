// Matrix products of 8-bit factors. A tensor becomes one of codes with a scale: x ≈ scale · code. The scale is a power
// of two, so that scaling rounds nothing: all that is lost is lost in the one rounding to a code.
#pragma once

#include "graph/ops/linear.h"

namespace convoy {

// Rows and columns of every factor are multiples of this: 16 bytes of codes, which cuBLASLt's FP8 products ask for.
inline constexpr std::int64_t kFp8Alignment = 16;

// (x bf16[m, n]) → f32[1]: the smallest power of two s, of at least 2^-100, with all |x| / s within the range of `to`.
// NaN where x holds anything that is not finite, so that products of x are NaN too and the step is skipped.
struct Fp8Scale final : Op {
  explicit Fp8Scale(DType target) : to(target) {}
  std::string_view name() const override { return "fp8_scale"; }
  std::string attributes() const override { return std::string(name_of(to)); }
  std::vector<TensorSpec> infer(Specs in) const override;
  DType to;
};

// (x bf16[m, n], scale) → the codes of x / scale [m, n], and their transpose [n, m]; one of them alone where the other
// is not wanted.
struct Fp8Quantize final : Op {
  enum class Keep : std::uint8_t { kRows, kTransposed, kBoth };
  Fp8Quantize(DType target, Keep which) : to(target), keep(which) {}
  std::string_view name() const override { return "fp8_quantize"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  bool cheap() const override { return true; }
  bool keeps_rows() const { return keep != Keep::kTransposed; }
  bool keeps_transposed() const { return keep != Keep::kRows; }
  DType to;
  Keep keep;
};

// (a [m, k], b [n, k], scale of a, scale of b, bias?, sum?) → c = scale_a · scale_b · a·bᵀ (+ bias[n]) (+ sum), and the
// value before the activation when it is kept; sums in f32, one rounding to c's type. What it is to the step:
//   kForward    y bf16  = x·Wᵀ (+ bias), both factors E4M3; may have an activation
//   kInputGrad  dx bf16 = dy·W (+ sum), dy E5M2
//   kWeightGrad dW f32 or bf16 (`narrow`) = dyᵀ·x, added into the gradient buffer `sum` where given; dy E5M2, either
//               factor
struct Fp8Product final : Op {
  enum class Kind : std::uint8_t { kForward, kInputGrad, kWeightGrad };
  explicit Fp8Product(Kind which, Activation act = Activation::kNone, bool keep = false)
      : kind(which), activation(act), keep_preactivation(keep) {}
  static Fp8Product weight_grad(bool narrow_result) {
    Fp8Product made(Kind::kWeightGrad);
    made.narrow = narrow_result;
    return made;
  }
  std::string_view name() const override;
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  std::vector<Alias> aliases() const override;
  static constexpr std::size_t kBias = 4, kSum = 5;  // inputs
  Kind kind;
  Activation activation;
  bool keep_preactivation;
  bool narrow = false;
};

}  // namespace convoy
