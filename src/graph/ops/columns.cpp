#include "graph/ops/columns.h"

#include <fmt/format.h>

#include "graph/graph.h"

namespace convoy {

std::string AddColumns::attributes() const {
  return fmt::format("from {}", first);
}

std::vector<TensorSpec> AddColumns::infer(Specs in) const {
  const TensorSpec& x = *in[0];
  const TensorSpec& part = *in[1];
  check(x.shape.rank() == 2 && part.shape.rank() == 2 && x.dtype == part.dtype && x.shape[0] == part.shape[0],
        "add_columns takes two tensors of as many rows and one dtype");
  check(first >= 0 && first + part.shape[1] <= x.shape[1], "add_columns: the part reaches beyond the rows");
  return {x};
}

void AddColumns::backward(BackwardContext& ctx) const {
  const ValueId dy = ctx.output_gradient(0);
  if (ctx.wants(0)) ctx.add_gradient(0, dy);
  if (!ctx.wants(1)) return;
  const std::int64_t count = ctx.graph.spec(ctx.input(1)).shape[1];
  ctx.add_gradient(1, ctx.graph.add_op(SliceColumns{first, count}, {dy}, {"gradient"})[0]);
}

std::string SliceColumns::attributes() const {
  return fmt::format("{}+{}", first, count);
}

std::vector<TensorSpec> SliceColumns::infer(Specs in) const {
  const TensorSpec& x = *in[0];
  check(x.shape.rank() == 2 && first >= 0 && first + count <= x.shape[1], "slice_columns reaches beyond the rows");
  return {{x.dtype, {x.shape[0], count}}};
}

Cost SliceColumns::cost(Specs /*in*/, std::span<const TensorSpec> out) const {
  return {0, 2.0 * static_cast<double>(out[0].bytes())};
}

}  // namespace convoy
