#include "graph/ops/select_rows.h"

#include "graph/graph.h"

namespace convoy {

std::vector<TensorSpec> SelectRows::infer(Specs in) const {
  check(in[0]->shape.rank() == 2 && in[1]->shape.rank() == 1, "select_rows takes rows and their indices");
  return {{in[0]->dtype, {in[1]->shape[0], in[0]->shape[1]}}};
}

void SelectRows::backward(BackwardContext& ctx) const {
  if (!ctx.wants(0)) return;
  const std::int64_t tokens = ctx.graph.spec(ctx.input(0)).shape[0];
  ctx.set_gradient(
      0, ctx.graph.add_op(SelectRowsGrad{tokens}, {ctx.output_gradient(0), ctx.input(1), ctx.gradient_so_far(0)},
                          {"gradient"})[0]);
}

std::vector<TensorSpec> SelectRowsGrad::infer(Specs in) const {
  return {{in[0]->dtype, {tokens, in[0]->shape[1]}}};
}

}  // namespace convoy
