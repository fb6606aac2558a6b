#include "graph/ops/embedding.h"

#include "graph/graph.h"

namespace convoy {

std::vector<TensorSpec> Embedding::infer(Specs in) const {
  check(in[0]->shape.rank() == 1 && in[1]->shape.rank() == 2, "embedding takes ids and a table");
  const std::int64_t d = in[1]->shape[1];
  if (in.size() > 3 && in[3] != nullptr)
    check(in[3]->shape[1] == d && in[3]->dtype == in[1]->dtype, "embedding: the tables differ");
  return {{in[1]->dtype, {in[0]->shape[0], d}}};
}

Cost Embedding::cost(Specs /*in*/, std::span<const TensorSpec> out) const {
  return {0, 2.0 * static_cast<double>(out[0].bytes())};
}

void Embedding::backward(BackwardContext& ctx) const {
  const ValueId dx = ctx.output_gradient(0);
  const auto table = [&](std::size_t ids, std::size_t weight, std::int64_t pad) {
    if (!ctx.wants(weight)) return;
    const std::int64_t rows = ctx.graph.spec(ctx.input(weight)).shape[0];
    ctx.set_weight_gradient(
        weight, ctx.graph.add_op(EmbeddingGrad{rows, pad}, {dx, ctx.input(ids), ctx.gradient_so_far(weight)})[0]);
  };
  table(2, 3, -1);
  table(0, 1, pad_id);
}

std::vector<TensorSpec> EmbeddingGrad::infer(Specs in) const {
  return {{accumulation_dtype(in[0]->dtype), {rows, in[0]->shape[1]}}};
}

}  // namespace convoy
