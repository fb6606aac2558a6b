#include "graph/ops/linear_cross_entropy.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/graph.h"

namespace convoy {
namespace {

double product_flops(Specs in) {
  return 2.0 * static_cast<double>(in[0]->shape[0]) * static_cast<double>(in[1]->numel());
}
std::string text_of(const CrossEntropyShape& s) {
  std::string text = fmt::format("chunk={}", s.chunk_rows);
  if (s.z_loss != 0) text += fmt::format(" z_loss={}", s.z_loss);
  if (s.label_smoothing != 0) text += fmt::format(" smoothing={}", s.label_smoothing);
  return text;
}

TensorSpec statistics_of(Specs in) {
  check(in[0]->shape.rank() == 2 && in[1]->shape.rank() == 2 && in[0]->shape[1] == in[1]->shape[1],
        "linear_cross_entropy: the rows are not as wide as the head");
  check(in[2]->shape == Shape({in[0]->shape[0]}), "linear_cross_entropy: one target per row");
  return {accumulation_dtype(in[0]->dtype), {kLossStatistics}};
}

}  // namespace

std::string LinearCrossEntropy::attributes() const {
  return text_of(shape);
}
std::string LinearCrossEntropyGrad::attributes() const {
  return text_of(shape) + (dx ? "" : " without dx") + (dweight ? "" : " without dweight");
}

std::vector<TensorSpec> LinearCrossEntropy::infer(Specs in) const {
  return {statistics_of(in)};
}

Cost LinearCrossEntropy::cost(Specs in, std::span<const TensorSpec> out) const {
  return {product_flops(in), traffic(in, out)};
}

void LinearCrossEntropy::backward(BackwardContext& ctx) const {
  const ValueId scale = ctx.output_gradient(0);
  check(ctx.graph.value(scale).producer < 0,
        "linear_cross_entropy: its loss can only be scaled by a value set by the host");
  const auto made = ctx.graph.add_op(LinearCrossEntropyGrad{shape, ctx.wants(0), ctx.wants(1)},
                                     {ctx.input(0), ctx.input(1), ctx.input(2), scale, ctx.gradient_so_far(1)},
                                     {"statistics", "gradient"});
  // The fused node also gives the statistics, which makes the forward node superfluous.
  std::replace(ctx.graph.outputs.begin(), ctx.graph.outputs.end(), ctx.output(0), made[0]);
  if (ctx.wants(1)) ctx.set_weight_gradient(1, made[2]);
  if (ctx.wants(0)) ctx.add_gradient(0, made[1]);
}

std::vector<TensorSpec> LinearCrossEntropyGrad::infer(Specs in) const {
  return {statistics_of(in),
          {in[0]->dtype, dx ? in[0]->shape : Shape{0}},
          {accumulation_dtype(in[0]->dtype), dweight ? in[1]->shape : Shape{0}}};
}

Cost LinearCrossEntropyGrad::cost(Specs in, std::span<const TensorSpec> out) const {
  return {(1 + dx + dweight) * product_flops(in), traffic(in, out)};
}

}  // namespace convoy
