#include "graph/ops/cross_attention.h"

#include <fmt/format.h>

#include "graph/graph.h"

namespace convoy {
namespace {

std::string text_of(const AttentionShape& s) {
  std::string text = fmt::format("heads={}/{}x{}", s.heads, s.kv_heads, s.head_dim);
  if (s.dropout > 0) text += fmt::format(" dropout={}", s.dropout);
  return text;
}

// Two products of 2·D each for every query head and key.
double forward_flops(const AttentionShape& s, std::int64_t tokens, std::int64_t keys) {
  const std::int64_t seen = s.row_tokens > 0 ? s.row_tokens : keys;
  return 4.0 * static_cast<double>(tokens) * static_cast<double>(seen) * static_cast<double>(s.heads * s.head_dim);
}

}  // namespace

std::string CrossAttention::attributes() const {
  return text_of(shape);
}

std::vector<TensorSpec> CrossAttention::infer(Specs in) const {
  const TensorSpec& q = *in[0];
  const TensorSpec& kv = *in[1];
  check(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
        "cross_attention: the query heads do not divide over the key heads");
  check(q.shape.rank() == 2 && q.shape[1] == shape.heads * shape.head_dim && kv.shape.rank() == 2 &&
            kv.shape[1] == 2 * shape.kv_heads * shape.head_dim && q.dtype == kv.dtype,
        "cross_attention: queries, keys and values do not fit the heads");
  check(in[2]->shape == Shape({q.shape[0]}) && in[3]->shape == Shape({q.shape[0]}),
        "cross_attention: the key ranges do not fit the queries");
  check(shape.dropout == 0 || (in.size() > 4 && in[4] != nullptr), "cross_attention with dropout needs token keys");
  return {q, {accumulation_dtype(q.dtype), {shape.heads, q.shape[0]}}};
}

Cost CrossAttention::cost(Specs in, std::span<const TensorSpec> out) const {
  return {forward_flops(shape, in[0]->shape[0], in[1]->shape[0]), traffic(in, out)};
}

void CrossAttention::backward(BackwardContext& ctx) const {
  if (!ctx.wants(0) && !ctx.wants(1)) return;
  const std::vector<ValueId> made = ctx.graph.add_op(CrossAttentionGrad{shape},
                                                     {ctx.output_gradient(0), ctx.input(0), ctx.input(1), ctx.output(0),
                                                      ctx.output(1), ctx.input(2), ctx.input(3), ctx.input(4)},
                                                     {"gradient", "gradient"});
  for (std::size_t i = 0; i < 2; ++i) {
    if (ctx.wants(i)) ctx.add_gradient(i, made[i]);
  }
}

std::string CrossAttentionGrad::attributes() const {
  return text_of(shape);
}

Cost CrossAttentionGrad::cost(Specs in, std::span<const TensorSpec> out) const {
  return {2.5 * forward_flops(shape, in[1]->shape[0], in[2]->shape[0]), traffic(in, out)};
}

}  // namespace convoy
