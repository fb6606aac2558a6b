#include "graph/ops/elementwise.h"

#include <fmt/format.h>

#include "graph/graph.h"

namespace convoy {

std::vector<TensorSpec> Add::infer(Specs in) const {
  check(*in[0] == *in[1], "add takes two tensors of one shape and dtype");
  return {*in[0]};
}

void Add::backward(BackwardContext& ctx) const {
  for (std::size_t i = 0; i < 2; ++i) {
    if (ctx.wants(i)) ctx.add_gradient(i, ctx.output_gradient(0));
  }
}

std::string Scale::attributes() const {
  return fmt::format("{}", factor);
}

void Scale::backward(BackwardContext& ctx) const {
  if (ctx.wants(0)) ctx.add_gradient(0, ctx.graph.add_op(Scale{factor}, {ctx.output_gradient(0)}, {"gradient"})[0]);
}

std::string Dropout::attributes() const {
  return fmt::format("p={} use={}", p, use);
}

std::vector<TensorSpec> Dropout::infer(Specs in) const {
  check(in[0]->shape.rank() == 2 && in[1]->shape == Shape({in[0]->shape[0]}), "dropout takes rows and a key for each");
  return {*in[0]};
}

void Dropout::backward(BackwardContext& ctx) const {
  if (ctx.wants(0))
    ctx.add_gradient(0, ctx.graph.add_op(*this, {ctx.output_gradient(0), ctx.input(1)}, {"gradient"})[0]);
}

std::vector<TensorSpec> Scale::infer(Specs in) const {
  return {*in[0]};
}

std::vector<TensorSpec> Zeros::infer(Specs /*in*/) const {
  return {spec};
}

}  // namespace convoy
