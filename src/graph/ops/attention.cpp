#include "graph/ops/attention.h"

#include <fmt/format.h>

#include "graph/graph.h"

namespace convoy {
namespace {

// Upper bound: every row one document. Two products of 2·S·S·D each a head, half of it when causal.
double forward_flops(const AttentionShape& s, std::int64_t tokens) {
  const std::int64_t row = s.row_tokens > 0 ? s.row_tokens : tokens;
  const auto length = static_cast<double>(row);
  const double keys = s.window > 0 && s.window < row ? static_cast<double>(s.window) : (s.causal ? length / 2 : length);
  return 4.0 * static_cast<double>(tokens) * keys * static_cast<double>(s.heads * s.head_dim);
}

}  // namespace

std::string AttentionShape::str() const {
  std::string text = fmt::format("heads={}/{}x{} {}", heads, kv_heads, head_dim, causal ? "causal" : "bidirectional");
  if (window > 0) text += fmt::format(" window={}", window);
  if (dropout > 0) text += fmt::format(" dropout={}", dropout);
  return text;
}

std::vector<TensorSpec> Attention::infer(Specs in) const {
  const TensorSpec& x = *in[0];
  check(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
        "attention: the query heads do not divide over the key heads");
  check(x.shape.rank() == 2 && x.shape[1] == (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
        "attention: the packed rows do not fit the heads");
  check(in[1]->shape == Shape({x.shape[0]}), "attention: seq_start does not fit the rows");
  check(shape.dropout == 0 || (in.size() > 2 && in[2] != nullptr), "attention with dropout needs token keys");
  return {{x.dtype, {x.shape[0], shape.heads * shape.head_dim}},
          {accumulation_dtype(x.dtype), {shape.heads, x.shape[0]}}};
}

Cost Attention::cost(Specs in, std::span<const TensorSpec> out) const {
  return {forward_flops(shape, in[0]->shape[0]), traffic(in, out)};
}

void Attention::backward(BackwardContext& ctx) const {
  if (!ctx.wants(0)) return;
  ctx.add_gradient(0, ctx.graph.add_op(AttentionGrad{shape},
                                       {ctx.output_gradient(0), ctx.input(0), ctx.output(0), ctx.output(1),
                                        ctx.input(1), ctx.input(2)},
                                       {"gradient"})[0]);
}

Cost AttentionGrad::cost(Specs in, std::span<const TensorSpec> out) const {
  return {2.5 * forward_flops(shape, in[1]->shape[0]), traffic(in, out)};
}

}  // namespace convoy
