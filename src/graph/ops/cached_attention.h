// Attention of generation: the keys and values of earlier tokens are kept from one program to the next.
#pragma once

#include "graph/ops/attention.h"

namespace convoy {

// (qkv [tokens, (H+2K)·D], row i32[tokens], keys [rows, K·D], values [rows, K·D]) → keys and values, in place, with
// those of token t in row[t]; a token whose row is -1 is not kept.
struct KeepKeysValues final : Op {
  KeepKeysValues(std::int64_t query_heads, std::int64_t key_heads, std::int64_t dim)
      : heads(query_heads), kv_heads(key_heads), head_dim(dim) {}
  std::string_view name() const override { return "keep_keys_values"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  std::vector<Alias> aliases() const override { return {{0, 2, true}, {1, 3, true}}; }
  std::int64_t heads, kv_heads, head_dim;
};

// (qkv [tokens, (H+2K)·D], keys [rows, K·D], values [rows, K·D], begin i32[tokens], end i32[tokens]) →
// o [tokens, H·D]: the queries of token t over the rows [begin[t], end[t]), of which a window leaves the last; 0 where
// there are none. Only the scale, the heads and the window of the shape count.
struct CachedAttention final : Op {
  explicit CachedAttention(AttentionShape s) : shape(s) {}
  std::string_view name() const override { return "cached_attention"; }
  std::string attributes() const override { return shape.str(); }
  std::vector<TensorSpec> infer(Specs in) const override;
  // An upper bound: every token sees all rows that are its share.
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  AttentionShape shape;
};

}  // namespace convoy
