// Matrix products with weights. x is [tokens, in]; the weight is [out, in] (y = x Wᵀ + b), or [in, out] when transposed
// (y = x W + b; GPT-2's Conv1D).
#pragma once

#include "graph/op.h"

namespace convoy {

enum class Activation : std::uint8_t { kNone, kGeluErf, kGeluTanh };
std::string_view name_of(Activation activation);

// (x, weight, bias?) → y, and the value before the activation when it is kept for the backward pass.
struct Linear final : Op {
  explicit Linear(bool transposed_weight = false, Activation act = Activation::kNone, bool keep = false)
      : transposed(transposed_weight), activation(act), keep_preactivation(keep) {}
  std::string_view name() const override { return "linear"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  bool transposed;
  Activation activation;
  bool keep_preactivation;
};

// (dy, weight, sum?) → dx = dy·W, plus `sum` where given.
struct LinearInputGrad final : Op {
  explicit LinearInputGrad(bool transposed_weight) : transposed(transposed_weight) {}
  std::string_view name() const override { return "linear_dx"; }
  std::string attributes() const override { return transposed ? "transposed" : ""; }
  std::vector<TensorSpec> infer(Specs in) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  std::vector<Alias> aliases() const override { return {{0, 2, false}}; }
  bool transposed;
};

// (x, dy, sum?) → dW, in float32 (float64 for float64) or, `narrow`, in the factors' type, added into the gradient
// buffer `sum` where given. The product and that sum are rounded once.
struct LinearWeightGrad final : Op {
  explicit LinearWeightGrad(bool transposed_weight, bool narrow_result = false)
      : transposed(transposed_weight), narrow(narrow_result) {}
  std::string_view name() const override { return "linear_dw"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  std::vector<Alias> aliases() const override { return {{0, 2, true}}; }
  bool transposed;
  bool narrow;
};

// The row-major product C[m, n] = op(A) op(B) that an operation is, with the inputs that are its A and B.
struct Product {
  std::int64_t m, n, k;
  bool transpose_a;  // A is stored [k, m]
  bool transpose_b;  // B is stored [n, k]
  std::size_t a = 0, b = 1;
};
Product product_of(const Linear& op, Specs in, std::span<const TensorSpec> out);
Product product_of(const LinearInputGrad& op, Specs in, std::span<const TensorSpec> out);
// dW = dYᵀ·X for a weight [out, in], Xᵀ·dY for a transposed one.
Product product_of(const LinearWeightGrad& op, Specs in, std::span<const TensorSpec> out);

// (dy [tokens, n], sum?) → the gradient of a bias [n]: column sums.
struct BiasGrad final : Op {
  std::string_view name() const override { return "bias_grad"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{0, 1, true}}; }
};

}  // namespace convoy
