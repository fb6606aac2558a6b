// Scaled dot-product attention on packed rows (Vaswani et al., 2017), computed blockwise without the score matrix
// (Dao et al., "FlashAttention", 2022).
#pragma once

#include "graph/op.h"

namespace convoy {

struct AttentionShape {
  std::int64_t heads = 1;     // query heads H
  std::int64_t kv_heads = 1;  // key/value heads K; query head h reads head h / (H/K)
  std::int64_t head_dim = 1;
  double scale = 1;
  bool causal = true;
  std::int64_t window = 0;      // a query sees only the last `window` keys; 0 = all
  std::int64_t row_tokens = 0;  // no document crosses a multiple of this many tokens; 0 = unknown
  bool whole_rows = false;      // whatever the batch, every document is a row of row_tokens
  float dropout = 0;            // on the probabilities
  std::uint64_t seed = 0;
  std::uint32_t use = 0;
  std::string str() const;
};

// (qkv [tokens, (H+2K)·D], seq_start i32[tokens], token_keys? i64[tokens]) → o [tokens, H·D], log-sum-exp [H, tokens].
// seq_start is the index of the first token of each token's document: no token sees another document.
struct Attention final : Op {
  explicit Attention(AttentionShape s) : shape(s) {}
  std::string_view name() const override { return "attention"; }
  std::string attributes() const override { return shape.str(); }
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  AttentionShape shape;
};

// (do, qkv, o, lse, seq_start, token_keys?) → dqkv.
struct AttentionGrad final : Op {
  explicit AttentionGrad(AttentionShape s) : shape(s) {}
  std::string_view name() const override { return "attention_grad"; }
  std::string attributes() const override { return shape.str(); }
  std::vector<TensorSpec> infer(Specs in) const override { return {*in[1]}; }
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  AttentionShape shape;
};

}  // namespace convoy
