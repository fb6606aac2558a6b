// Attention of one sequence's queries over another's keys and values (an encoder's output).
#pragma once

#include "graph/ops/attention.h"

namespace convoy {

// (q [tokens, H·D], kv [keys, 2K·D] = [k | v], key_begin i32[tokens], key_end i32[tokens], token_keys? i64[tokens]) →
// o [tokens, H·D], log-sum-exp [H, tokens]. Token t sees keys [key_begin[t], key_end[t]); without any, o is 0.
// Of the shape, heads, kv_heads, head_dim, scale and dropout count; row_tokens is the number of keys that a token sees
// (for the cost), 0 = all. With whole_rows the ranges are known beforehand: the tokens are keys / row_tokens rows of one
// length, and those of row r see the keys [r, r + 1)·row_tokens.
struct CrossAttention final : Op {
  explicit CrossAttention(AttentionShape s) : shape(s) {}
  std::string_view name() const override { return "cross_attention"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  AttentionShape shape;
};

// (do, q, kv, o, lse, key_begin, key_end, token_keys?) → dq, dkv.
struct CrossAttentionGrad final : Op {
  explicit CrossAttentionGrad(AttentionShape s) : shape(s) {}
  std::string_view name() const override { return "cross_attention_grad"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override { return {*in[1], *in[2]}; }
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  AttentionShape shape;
};

}  // namespace convoy
