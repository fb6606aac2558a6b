// Matrix products with weights, and the gradients of biases.
#include <type_traits>

#include "cuda/activation.h"
#include "cuda/column_sums.h"
#include "cuda/matmul.h"
#include "cuda/registry.h"
#include "graph/ops/linear.h"

namespace convoy::cuda {
namespace {

template <typename O>
MatmulSpec spec_of(const O& op, const KernelRequest& q) {
  const Product product = product_of(op, q.inputs, q.outputs);
  const bool adds_bias = std::is_same_v<O, Linear>;  // its third input; the gradients' is a sum
  MatmulSpec spec;
  spec.m = product.m;
  spec.n = product.n;
  spec.k = product.k;
  spec.transpose_a = product.transpose_a;
  spec.transpose_b = product.transpose_b;
  spec.in = q.inputs[0]->dtype;
  spec.out = q.outputs[0].dtype;
  spec.bias = adds_bias && q.has(2);
  spec.accumulate = !adds_bias && q.has(2);
  return spec;
}

// Choosing the algorithm here, while the plan is made, finds the device's memory still free to try them in.
template <typename O>
auto product_workspace(Context& c) {
  return [&c](const O& op, const KernelRequest& q) {
    Matmul(c, spec_of(op, q));
    return kMatmulWorkspace;
  };
}

void register_bias_grad(KernelRegistry& registry, Context& c) {
  registry.add<BiasGrad>(
      [&c](const BiasGrad&, const KernelRequest& q) {
        return [&c, dtype = q.inputs[0]->dtype, rows = q.inputs[0]->shape[0], n = q.inputs[0]->shape[1],
                accumulate = q.has(1)](const KernelArguments& a) {
          column_sums(dtype, a.inputs[0], rows, n, accumulate, reinterpret_cast<float*>(a.outputs[0]), a.workspace,
                      c.stream);
        };
      },
      [](const BiasGrad&, const KernelRequest& q) {
        return column_sums_workspace(q.inputs[0]->shape[0], q.inputs[0]->shape[1]);
      });
}

}  // namespace

void register_linear(KernelRegistry& registry, Context& c) {
  registry.add<Linear>(
      [&c](const Linear& op, const KernelRequest& q) {
        return [&c, product = std::make_shared<Matmul>(c, spec_of(op, q)), op, dtype = q.outputs[0].dtype,
                n = q.outputs[0].numel()](const KernelArguments& a) {
          const std::byte* bias = a.inputs.size() > 2 ? a.inputs[2] : nullptr;
          std::byte* before = op.keep_preactivation ? a.outputs[1] : a.outputs[0];
          product->run(a.inputs[0], a.inputs[1], bias, nullptr, before, a.workspace);
          if (op.activation != Activation::kNone)
            gelu(dtype, before, a.outputs[0], n, op.activation == Activation::kGeluTanh, c.stream);
        };
      },
      product_workspace<Linear>(c));
  registry.add<LinearInputGrad>(
      [&c](const LinearInputGrad& op, const KernelRequest& q) {
        return [product = std::make_shared<Matmul>(c, spec_of(op, q)), sum = q.has(2)](const KernelArguments& a) {
          product->run(a.inputs[0], a.inputs[1], nullptr, sum ? a.inputs[2] : nullptr, a.outputs[0], a.workspace);
        };
      },
      product_workspace<LinearInputGrad>(c));
  registry.add<LinearWeightGrad>(
      [&c](const LinearWeightGrad& op, const KernelRequest& q) {
        return [matmul = std::make_shared<Matmul>(c, spec_of(op, q)),
                product = product_of(op, q.inputs, q.outputs)](const KernelArguments& a) {
          matmul->run(a.inputs[product.a], a.inputs[product.b], nullptr, a.outputs[0], a.outputs[0], a.workspace);
        };
      },
      product_workspace<LinearWeightGrad>(c));
  register_bias_grad(registry, c);
}

}  // namespace convoy::cuda
