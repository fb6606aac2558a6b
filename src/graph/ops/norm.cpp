#include "graph/ops/norm.h"

#include <fmt/format.h>

#include "graph/graph.h"

namespace convoy {
namespace {

bool has(Specs in, std::size_t i) {
  return i < in.size() && in[i] != nullptr;
}

void check_rows(const TensorSpec& x, const TensorSpec& weight) {
  check(x.shape.rank() == 2 && weight.shape == Shape({x.shape[1]}), "a norm takes rows and a weight of their width");
  check(x.dtype == weight.dtype, "norm: rows and weight have different dtypes");
}

}  // namespace

std::string RmsNorm::attributes() const {
  return fmt::format("eps={}", eps);
}

std::vector<TensorSpec> RmsNorm::infer(Specs in) const {
  check_rows(*in[0], *in[1]);
  const TensorSpec statistic{accumulation_dtype(in[0]->dtype), {in[0]->shape[0]}};
  if (has(in, 2)) return {*in[0], statistic, *in[0]};
  return {*in[0], statistic};
}

void RmsNorm::backward(BackwardContext& ctx) const {
  check(ctx.input(2) == kNoValue, "rmsnorm: residuals are fused after differentiation");
  const auto made = ctx.graph.add_op(RmsNormGrad{ctx.wants(1)},
                                     {ctx.output_gradient(0), ctx.input(0), ctx.input(1), ctx.output(1),
                                      ctx.gradient_so_far(0), ctx.gradient_so_far(1)},
                                     {"gradient"});
  if (ctx.wants(1)) ctx.set_weight_gradient(1, made[1]);
  ctx.set_gradient(0, made[0]);
}

std::vector<TensorSpec> RmsNormGrad::infer(Specs in) const {
  return {*in[1], {accumulation_dtype(in[1]->dtype), dweight ? in[2]->shape : Shape{0}}};
}

std::string LayerNorm::attributes() const {
  return fmt::format("eps={}", eps);
}

std::vector<TensorSpec> LayerNorm::infer(Specs in) const {
  check_rows(*in[0], *in[1]);
  check_rows(*in[0], *in[2]);
  const TensorSpec statistic{accumulation_dtype(in[0]->dtype), {in[0]->shape[0]}};
  if (has(in, 3)) return {*in[0], statistic, statistic, *in[0]};
  return {*in[0], statistic, statistic};
}

void LayerNorm::backward(BackwardContext& ctx) const {
  check(ctx.input(3) == kNoValue, "layernorm: residuals are fused after differentiation");
  const auto made = ctx.graph.add_op(LayerNormGrad{ctx.wants(1) || ctx.wants(2)},
                                     {ctx.output_gradient(0), ctx.input(0), ctx.input(1), ctx.output(1), ctx.output(2),
                                      ctx.gradient_so_far(0), ctx.gradient_so_far(1), ctx.gradient_so_far(2)},
                                     {"gradient"});
  if (ctx.wants(1)) ctx.set_weight_gradient(1, made[1]);
  if (ctx.wants(2)) ctx.set_weight_gradient(2, made[2]);
  ctx.set_gradient(0, made[0]);
}

std::vector<TensorSpec> LayerNormGrad::infer(Specs in) const {
  const TensorSpec weight{accumulation_dtype(in[1]->dtype), dweight ? in[2]->shape : Shape{0}};
  return {*in[1], weight, weight};
}

std::string QkNorm::attributes() const {
  return fmt::format("heads={}/{}x{} eps={}", heads, kv_heads, head_dim, eps);
}

std::vector<TensorSpec> QkNorm::infer(Specs in) const {
  const TensorSpec& x = *in[0];
  check(x.shape.rank() == 2 && x.shape[1] == (heads + 2 * kv_heads) * head_dim,
        "qk_norm: the packed rows do not fit the heads");
  check(in[1]->shape == Shape({head_dim}) && in[2]->shape == Shape({head_dim}),
        "qk_norm: a weight is not as wide as a head");
  const DType statistic = accumulation_dtype(x.dtype);
  return {x, {statistic, {x.shape[0], heads}}, {statistic, {x.shape[0], kv_heads}}};
}

void QkNorm::backward(BackwardContext& ctx) const {
  const auto made = ctx.graph.add_op(QkNormGrad{heads, kv_heads, head_dim, ctx.wants(1) || ctx.wants(2)},
                                     {ctx.output_gradient(0), ctx.input(0), ctx.input(1), ctx.input(2), ctx.output(1),
                                      ctx.output(2), ctx.gradient_so_far(1), ctx.gradient_so_far(2)},
                                     {"gradient"});
  if (ctx.wants(1)) ctx.set_weight_gradient(1, made[1]);
  if (ctx.wants(2)) ctx.set_weight_gradient(2, made[2]);
  if (ctx.wants(0)) ctx.add_gradient(0, made[0]);
}

std::vector<TensorSpec> QkNormGrad::infer(Specs in) const {
  const DType wide = accumulation_dtype(in[1]->dtype);
  return {*in[1], {wide, dweight ? in[2]->shape : Shape{0}}, {wide, dweight ? in[3]->shape : Shape{0}}};
}

}  // namespace convoy
