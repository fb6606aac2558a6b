// A run of columns of packed rows: where a part of a fused product (the queries of qkv, the gates of gate and up) lies.
#pragma once

#include "graph/op.h"

namespace convoy {

// (x [tokens, n], part [tokens, m]) → x with `part` added to its columns first … first + m.
struct AddColumns final : Op {
  explicit AddColumns(std::int64_t first_column) : first(first_column) {}
  std::string_view name() const override { return "add_columns"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  std::vector<Alias> aliases() const override { return {{0, 0, false}}; }
  bool cheap() const override { return true; }
  std::int64_t first;
};

// (x [tokens, n]) → its columns first … first + count.
struct SliceColumns final : Op {
  SliceColumns(std::int64_t first_column, std::int64_t columns) : first(first_column), count(columns) {}
  std::string_view name() const override { return "slice_columns"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  bool cheap() const override { return true; }
  std::int64_t first, count;
};

}  // namespace convoy
