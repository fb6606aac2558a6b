#include "graph/ops/cross_entropy.h"

#include <fmt/format.h>

#include "graph/graph.h"

namespace convoy {

std::string CrossEntropy::attributes() const {
  return fmt::format("classes={}", classes);
}
std::string CrossEntropyGrad::attributes() const {
  return fmt::format("classes={}", classes);
}

std::vector<TensorSpec> CrossEntropy::infer(Specs in) const {
  check(classes > 0 && in[1]->shape.rank() == 1 && in[0]->numel() == in[1]->shape[0] * classes,
        "cross_entropy: the scores are not one for each item and class");
  return {{accumulation_dtype(in[0]->dtype), {kLossStatistics}}};
}

void CrossEntropy::backward(BackwardContext& ctx) const {
  if (!ctx.wants(0)) return;
  ctx.add_gradient(0, ctx.graph.add_op(CrossEntropyGrad{classes}, {ctx.input(0), ctx.input(1), ctx.output_gradient(0)},
                                       {"gradient"})[0]);
}

}  // namespace convoy
