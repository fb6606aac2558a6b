// Normalisations. Statistics and sums are float32 (float64 for float64 tensors).
#pragma once

#include "graph/op.h"

namespace convoy {

// (x [tokens, d], weight [d], residual? [tokens, d]) → y = w·r·rstd with r = x + residual; rstd[tokens]; r where a
// residual is given. rstd = (mean(r²) + eps)^(-½) (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019).
struct RmsNorm final : Op {
  explicit RmsNorm(double epsilon) : eps(epsilon) {}
  std::string_view name() const override { return "rmsnorm"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  std::vector<Alias> aliases() const override { return {{2, 2, false}, {2, 0, false}}; }
  bool cheap() const override { return true; }
  double eps;
};

// (dy, r, weight, rstd, sum? [tokens, d], weight_sum? [d]) → dr (plus `sum`), dweight (added into `weight_sum`; empty
// where it is not wanted).
struct RmsNormGrad final : Op {
  explicit RmsNormGrad(bool wants_dweight = true) : dweight(wants_dweight) {}
  std::string_view name() const override { return "rmsnorm_grad"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{0, 4, false}, {1, 5, true}}; }
  bool dweight;
};

// (x, weight, bias, residual?) → y = (r - mean)·rstd·w + b; mean, rstd [tokens]; r where a residual is given
// (Ba, Kiros and Hinton, "Layer Normalization", 2016; biased variance).
struct LayerNorm final : Op {
  explicit LayerNorm(double epsilon) : eps(epsilon) {}
  std::string_view name() const override { return "layernorm"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  std::vector<Alias> aliases() const override { return {{3, 3, false}, {3, 0, false}}; }
  bool cheap() const override { return true; }
  double eps;
};

// (dy, r, weight, mean, rstd, sum?, weight_sum?, bias_sum?) → dr (plus `sum`), dweight, dbias (both
// empty where neither is wanted).
struct LayerNormGrad final : Op {
  explicit LayerNormGrad(bool wants_dweight = true) : dweight(wants_dweight) {}
  std::string_view name() const override { return "layernorm_grad"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{0, 5, false}, {1, 6, true}, {2, 7, true}}; }
  bool dweight;
};

// RMSNorm over each query and key head of packed rows, before the rotary embedding (Qwen3):
// (qkv [tokens, (H+2K)·D], q_weight [D], k_weight [D]) → the same rows normalised; rstd of queries [tokens, H] and keys
// [tokens, K].
struct QkNorm final : Op {
  QkNorm(std::int64_t query_heads, std::int64_t key_heads, std::int64_t dim, double epsilon)
      : heads(query_heads), kv_heads(key_heads), head_dim(dim), eps(epsilon) {}
  std::string_view name() const override { return "qk_norm"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  bool cheap() const override { return true; }
  std::int64_t heads, kv_heads, head_dim;
  double eps;
};

// (dout, qkv, q_weight, k_weight, q_rstd, k_rstd, q_sum?, k_sum?) → dqkv, dq_weight, dk_weight (both empty where
// neither is wanted).
struct QkNormGrad final : Op {
  QkNormGrad(std::int64_t query_heads, std::int64_t key_heads, std::int64_t dim, bool wants_dweight = true)
      : heads(query_heads), kv_heads(key_heads), head_dim(dim), dweight(wants_dweight) {}
  std::string_view name() const override { return "qk_norm_grad"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{1, 6, true}, {2, 7, true}}; }
  std::int64_t heads, kv_heads, head_dim;
  bool dweight;
};

}  // namespace convoy
