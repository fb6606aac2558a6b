#include "graph/ops/rotary.h"

#include <fmt/format.h>

#include "graph/graph.h"

namespace convoy {

std::string Rotary::attributes() const {
  return fmt::format("heads={}x{} dim={} {}{}", heads, head_dim, rotary_dim,
                     pairing == RotaryPairing::kHalf ? "half" : "interleaved", inverse ? " inverse" : "");
}

std::vector<TensorSpec> Rotary::infer(Specs in) const {
  check(in[0]->shape.rank() == 2 && in[0]->shape[1] >= heads * head_dim,
        "rotary: the rows are narrower than the heads");
  check(in[1]->shape.rank() == 2 && in[1]->shape[1] == rotary_dim / 2,
        "rotary: the table is not half as wide as the rotated part");
  return {*in[0]};
}

void Rotary::backward(BackwardContext& ctx) const {
  if (!ctx.wants(0)) return;
  const Rotary back(heads, head_dim, rotary_dim, pairing, !inverse);
  ctx.add_gradient(
      0, ctx.graph.add_op(back, {ctx.output_gradient(0), ctx.input(1), ctx.input(2), ctx.input(3)}, {"gradient"})[0]);
}

}  // namespace convoy
