#include "graph/ops/activation.h"

#include "graph/graph.h"

namespace convoy {

std::vector<TensorSpec> SwiGlu::infer(Specs in) const {
  const TensorSpec& x = *in[0];
  check(x.shape.rank() == 2 && x.shape[1] % 2 == 0, "swiglu takes rows of gate and up halves");
  return {{x.dtype, {x.shape[0], x.shape[1] / 2}}};
}

Cost SwiGlu::cost(Specs in, std::span<const TensorSpec> out) const {
  return {6.0 * static_cast<double>(out[0].numel()), traffic(in, out)};
}

void SwiGlu::backward(BackwardContext& ctx) const {
  if (ctx.wants(0))
    ctx.add_gradient(0, ctx.graph.add_op(SwiGluGrad{}, {ctx.output_gradient(0), ctx.input(0)}, {"gradient"})[0]);
}

void Gelu::backward(BackwardContext& ctx) const {
  if (ctx.wants(0))
    ctx.add_gradient(0, ctx.graph.add_op(GeluGrad{tanh}, {ctx.output_gradient(0), ctx.input(0)}, {"gradient"})[0]);
}

std::vector<TensorSpec> SwiGluGrad::infer(Specs in) const {
  return {*in[1]};
}

std::vector<TensorSpec> Gelu::infer(Specs in) const {
  return {*in[0]};
}

std::vector<TensorSpec> GeluGrad::infer(Specs in) const {
  return {*in[1]};
}

}  // namespace convoy
