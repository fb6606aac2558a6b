// Pointwise activations.
#pragma once

#include "graph/op.h"

namespace convoy {

// gate_up [tokens, 2f] = [gate | up] → silu(gate)·up [tokens, f] (Shazeer, "GLU Variants Improve Transformer", 2020).
struct SwiGlu final : Op {
  std::string_view name() const override { return "swiglu"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  bool cheap() const override { return true; }
};

// (dy [tokens, f], gate_up [tokens, 2f]) → dgate_up.
struct SwiGluGrad final : Op {
  std::string_view name() const override { return "swiglu_grad"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{0, 1, false}}; }
};

// x → ½x(1 + erf(x/√2)), or its tanh form ½x(1 + tanh(√(2/π)(x + 0.044715x³))) (Hendrycks and Gimpel, 2016).
struct Gelu final : Op {
  explicit Gelu(bool tanh_form) : tanh(tanh_form) {}
  std::string_view name() const override { return "gelu"; }
  std::string attributes() const override { return tanh ? "tanh" : "erf"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  std::vector<Alias> aliases() const override { return {{0, 0, false}}; }
  bool cheap() const override { return true; }
  bool tanh;
};

// (dy, x) → dx.
struct GeluGrad final : Op {
  explicit GeluGrad(bool tanh_form) : tanh(tanh_form) {}
  std::string_view name() const override { return "gelu_grad"; }
  std::string attributes() const override { return tanh ? "tanh" : "erf"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{0, 0, false}, {0, 1, false}}; }
  bool tanh;
};

}  // namespace convoy
