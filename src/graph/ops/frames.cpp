#include "graph/ops/frames.h"

#include <fmt/format.h>

#include "graph/graph.h"

namespace convoy {

std::int64_t convolved_frames(std::int64_t frames, std::int64_t stride) {
  return (frames - 1) / stride + 1;
}

std::string Unfold::attributes() const {
  return fmt::format("frames={} stride={}", frames, stride);
}

std::vector<TensorSpec> Unfold::infer(Specs in) const {
  const TensorSpec& x = *in[0];
  check(x.shape.rank() == 2 && frames > 0 && x.shape[0] % frames == 0, "unfold takes whole windows of frames");
  check(stride == 1 || stride == 2, "unfold: the stride is neither 1 nor 2");
  return {{x.dtype, {x.shape[0] / frames * convolved_frames(frames, stride), kConvolutionTaps * x.shape[1]}}};
}

void Unfold::backward(BackwardContext& ctx) const {
  if (ctx.wants(0))
    ctx.add_gradient(0, ctx.graph.add_op(UnfoldGrad{frames, stride}, {ctx.output_gradient(0)}, {"gradient"})[0]);
}

std::string UnfoldGrad::attributes() const {
  return fmt::format("frames={} stride={}", frames, stride);
}

std::vector<TensorSpec> UnfoldGrad::infer(Specs in) const {
  const TensorSpec& dy = *in[0];
  const std::int64_t out = convolved_frames(frames, stride);
  check(dy.shape.rank() == 2 && dy.shape[0] % out == 0 && dy.shape[1] % kConvolutionTaps == 0,
        "unfold_grad: the gradient does not fit the windows");
  return {{dy.dtype, {dy.shape[0] / out * frames, dy.shape[1] / kConvolutionTaps}}};
}

std::vector<TensorSpec> Reshape::infer(Specs in) const {
  check(in[0]->numel() == shape.numel(), "reshape: the number of elements changes");
  return {{in[0]->dtype, shape}};
}

void Reshape::backward(BackwardContext& ctx) const {
  if (!ctx.wants(0)) return;
  const Shape before = ctx.graph.spec(ctx.input(0)).shape;
  ctx.add_gradient(0, ctx.graph.add_op(Reshape{before}, {ctx.output_gradient(0)}, {"gradient"})[0]);
}

std::vector<TensorSpec> ReplaceRows::infer(Specs in) const {
  check(in[0]->shape.rank() == 2 && in[1]->shape.rank() == 2 && in[0]->shape[1] == in[1]->shape[1] &&
            in[0]->dtype == in[1]->dtype,
        "replace_rows takes two matrices of one width and dtype");
  check(in[2]->shape == Shape({in[0]->shape[0]}), "replace_rows: the sources do not fit the rows");
  return {*in[0]};
}

void ReplaceRows::backward(BackwardContext& ctx) const {
  if (!ctx.wants(0) && !ctx.wants(1)) return;
  const std::int64_t rows = ctx.graph.spec(ctx.input(1)).shape[0];
  const std::vector<ValueId> made =
      ctx.graph.add_op(ReplaceRowsGrad{rows}, {ctx.output_gradient(0), ctx.input(2)}, {"gradient", "rows_gradient"});
  for (std::size_t i = 0; i < 2; ++i) {
    if (ctx.wants(i)) ctx.add_gradient(i, made[i]);
  }
}

std::vector<TensorSpec> ReplaceRowsGrad::infer(Specs in) const {
  return {*in[0], {in[0]->dtype, {rows, in[0]->shape[1]}}};
}

std::vector<TensorSpec> ExpandBias::infer(Specs in) const {
  for (const BiasPart& part : parts) {
    check(part.from + part.count <= in[0]->numel() && part.to + part.count <= width,
          "expand_bias: a part does not fit");
  }
  return {{in[0]->dtype, {width}}};
}

void ExpandBias::backward(BackwardContext& ctx) const {
  if (!ctx.wants(0)) return;
  const std::int64_t n = ctx.graph.spec(ctx.input(0)).numel();
  ctx.set_weight_gradient(
      0, ctx.graph.add_op(ExpandBiasGrad{n, parts}, {ctx.output_gradient(0), ctx.gradient_so_far(0)})[0]);
}

std::vector<TensorSpec> ExpandBiasGrad::infer(Specs in) const {
  return {{in[0]->dtype, {width}}};
}

}  // namespace convoy
