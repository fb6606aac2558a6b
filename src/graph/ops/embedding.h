// Table look-ups.
#pragma once

#include "graph/op.h"

namespace convoy {

// (ids i32[tokens], table [V, d], positions? i32[tokens], position_table? [P, d]) → table[ids] (+
// position_table[positions]). `pad_id` (or -1): the row whose look-ups give no gradient, as torch's padding_idx.
struct Embedding final : Op {
  explicit Embedding(std::int64_t pad = -1) : pad_id(pad) {}
  std::string_view name() const override { return "embedding"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  bool cheap() const override { return true; }
  std::int64_t pad_id;
};

// (dx [tokens, d], ids i32[tokens], sum?) → the gradient of a table [rows, d]: rows of dx summed by id, in token order.
struct EmbeddingGrad final : Op {
  EmbeddingGrad(std::int64_t table_rows, std::int64_t pad) : rows(table_rows), pad_id(pad) {}
  std::string_view name() const override { return "embedding_grad"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{0, 2, true}}; }
  std::int64_t rows;
  std::int64_t pad_id;
};

}  // namespace convoy
