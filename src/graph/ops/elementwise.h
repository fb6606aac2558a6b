// Elementwise operations.
#pragma once

#include "graph/op.h"

namespace convoy {

// a + b.
struct Add final : Op {
  std::string_view name() const override { return "add"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  std::vector<Alias> aliases() const override { return {{0, 0, false}, {0, 1, false}}; }
  bool cheap() const override { return true; }
};

// factor · x.
struct Scale final : Op {
  explicit Scale(double by) : factor(by) {}
  std::string_view name() const override { return "scale"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  std::vector<Alias> aliases() const override { return {{0, 0, false}}; }
  bool cheap() const override { return true; }
  double factor;
};

// (x [tokens, d], token_keys i64[tokens]) → x with elements dropped with probability p, the rest scaled by 1/(1-p).
// The mask is a function of (seed, token key, element, use), so recomputation and the backward pass meet the same one.
struct Dropout final : Op {
  Dropout(float probability, std::uint64_t random_seed, std::uint32_t use_number)
      : p(probability), seed(random_seed), use(use_number) {}
  std::string_view name() const override { return "dropout"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  std::vector<Alias> aliases() const override { return {{0, 0, false}}; }
  bool cheap() const override { return true; }
  float p;
  std::uint64_t seed;
  std::uint32_t use;
};

// A tensor of zeros: the gradient of a weight that nothing uses.
struct Zeros final : Op {
  explicit Zeros(TensorSpec of) : spec(of) {}
  std::string_view name() const override { return "zeros"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  TensorSpec spec;
};

}  // namespace convoy
