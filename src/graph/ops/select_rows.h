// Rows of a tensor by index: the tokens that a classification head looks at.
#pragma once

#include "graph/op.h"

namespace convoy {

// (x [tokens, d], rows i32[n]) → x[rows] [n, d].
struct SelectRows final : Op {
  std::string_view name() const override { return "select_rows"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  bool cheap() const override { return true; }
};

// (dy [n, d], rows i32[n], sum? [tokens, d]) → dx [tokens, d]: each row of dy added to its row of `sum`, or of zeros,
// in the order of `rows`.
struct SelectRowsGrad final : Op {
  explicit SelectRowsGrad(std::int64_t of_tokens) : tokens(of_tokens) {}
  std::string_view name() const override { return "select_rows_grad"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{0, 2, false}}; }
  std::int64_t tokens;
};

}  // namespace convoy
