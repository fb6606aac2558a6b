#include "graph/ops/linear.h"

#include <utility>

#include "graph/graph.h"

namespace convoy {
namespace {

// Output and input widths of a weight.
std::int64_t width_out(const TensorSpec& weight, bool transposed) {
  return weight.shape[transposed ? 1 : 0];
}
std::int64_t width_in(const TensorSpec& weight, bool transposed) {
  return weight.shape[transposed ? 0 : 1];
}

double product_flops(const TensorSpec& rows, const TensorSpec& weight) {
  return 2.0 * static_cast<double>(rows.shape[0]) * static_cast<double>(weight.numel());
}

}  // namespace

std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return "none";
    case Activation::kGeluErf:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
  }
  return "?";
}

std::string Linear::attributes() const {
  std::string text = transposed ? "transposed" : "";
  if (activation != Activation::kNone) text += (text.empty() ? "" : " ") + std::string(name_of(activation));
  return text;
}

std::vector<TensorSpec> Linear::infer(Specs in) const {
  const TensorSpec& x = *in[0];
  const TensorSpec& w = *in[1];
  check(x.shape.rank() == 2 && w.shape.rank() == 2, "linear takes a matrix and a weight matrix");
  check(x.shape[1] == width_in(w, transposed), "linear: the input is not as wide as the weight");
  check(x.dtype == w.dtype, "linear: input and weight have different dtypes");
  const std::int64_t n = width_out(w, transposed);
  if (in.size() > 2 && in[2] != nullptr) check(in[2]->shape == Shape({n}), "linear: the bias does not fit the weight");
  const TensorSpec y{x.dtype, {x.shape[0], n}};
  if (keep_preactivation) return {y, y};
  return {y};
}

Cost Linear::cost(Specs in, std::span<const TensorSpec> out) const {
  return {product_flops(*in[0], *in[1]), traffic(in, out)};
}

void Linear::backward(BackwardContext& ctx) const {
  check(activation == Activation::kNone, "linear: activations are fused after differentiation");
  const ValueId dy = ctx.output_gradient(0);
  const ValueId x = ctx.input(0);
  const ValueId w = ctx.input(1);
  if (ctx.wants(2)) {
    if (ctx.graph.value(ctx.input(2)).role == Role::kWeight) {
      ctx.set_weight_gradient(2, ctx.graph.add_op(BiasGrad{}, {dy, ctx.gradient_so_far(2)})[0]);
    } else {  // a bias that is computed
      ctx.add_gradient(2, ctx.graph.add_op(BiasGrad{}, {dy}, {"gradient"})[0]);
    }
  }
  if (ctx.wants(1))
    ctx.set_weight_gradient(
        1, ctx.graph.add_op(LinearWeightGrad{transposed, ctx.narrow_gradient(1)}, {x, dy, ctx.gradient_so_far(1)})[0]);
  if (ctx.wants(0))
    ctx.set_gradient(0,
                     ctx.graph.add_op(LinearInputGrad{transposed}, {dy, w, ctx.gradient_so_far(0)}, {"gradient"})[0]);
}

std::vector<TensorSpec> LinearInputGrad::infer(Specs in) const {
  const TensorSpec& dy = *in[0];
  const TensorSpec& w = *in[1];
  check(dy.shape.rank() == 2 && dy.shape[1] == width_out(w, transposed),
        "linear_dx: the gradient does not fit the weight");
  return {{dy.dtype, {dy.shape[0], width_in(w, transposed)}}};
}

Cost LinearInputGrad::cost(Specs in, std::span<const TensorSpec> out) const {
  return {product_flops(*in[0], *in[1]), traffic(in, out)};
}

std::vector<TensorSpec> LinearWeightGrad::infer(Specs in) const {
  const TensorSpec& x = *in[0];
  const TensorSpec& dy = *in[1];
  check(x.shape[0] == dy.shape[0], "linear_dw: input and gradient have different numbers of rows");
  const Shape shape = transposed ? Shape{x.shape[1], dy.shape[1]} : Shape{dy.shape[1], x.shape[1]};
  return {{narrow ? x.dtype : accumulation_dtype(x.dtype), shape}};
}

std::string LinearWeightGrad::attributes() const {
  const std::string way = transposed ? "transposed" : "";
  return narrow ? way + (way.empty() ? "narrow" : " narrow") : way;
}

Cost LinearWeightGrad::cost(Specs in, std::span<const TensorSpec> out) const {
  return {product_flops(*in[0], out[0]), traffic(in, out)};
}

std::vector<TensorSpec> BiasGrad::infer(Specs in) const {
  return {{accumulation_dtype(in[0]->dtype), {in[0]->shape[1]}}};
}

Product product_of(const Linear& op, Specs in, std::span<const TensorSpec> out) {
  return {in[0]->shape[0], out[0].shape[1], in[0]->shape[1], false, !op.transposed};
}

Product product_of(const LinearInputGrad& op, Specs in, std::span<const TensorSpec> out) {
  return {out[0].shape[0], out[0].shape[1], in[0]->shape[1], false, op.transposed};
}

Product product_of(const LinearWeightGrad& op, Specs in, std::span<const TensorSpec> out) {
  Product product{out[0].shape[0], out[0].shape[1], in[0]->shape[0], true, false};
  if (!op.transposed) std::swap(product.a, product.b);
  return product;
}

}  // namespace convoy
