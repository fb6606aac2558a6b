// Products of 8-bit factors, through cuBLASLt.
#include <fmt/format.h>

#include "base/error.h"
#include "cuda/activation.h"
#include "cuda/matmul.h"
#include "cuda/registry.h"
#include "graph/ops/fp8.h"

namespace convoy::cuda {
namespace {

void require_fp8(const Context& c) {
  const int capability = 10 * c.properties.major + c.properties.minor;
  if (capability >= 89) return;
  throw usage_error(fmt::format("{} has compute capability {}.{}; fp8 needs 8.9", c.properties.name, c.properties.major,
                                c.properties.minor))
      .at("fp8")
      .mend("leave fp8 out: bf16 computes on this GPU");
}

MatmulSpec spec_of(const Fp8Product& op, const KernelRequest& q) {
  MatmulSpec spec;
  spec.m = q.outputs[0].shape[0];
  spec.n = q.outputs[0].shape[1];
  spec.k = q.inputs[0]->shape[1];
  spec.transpose_b = true;
  spec.in = q.inputs[0]->dtype;
  spec.in_b = q.inputs[1]->dtype;
  spec.out = q.outputs[0].dtype;
  spec.bias = q.has(Fp8Product::kBias);
  spec.accumulate = q.has(Fp8Product::kSum);
  // What gradients lose in rough sums adds up over a network's depth.
  spec.rough_sums = op.kind == Fp8Product::Kind::kForward;
  return spec;
}

}  // namespace

void register_fp8_products(KernelRegistry& registry, Context& c) {
  registry.add<Fp8Product>(
      [&c](const Fp8Product& op, const KernelRequest& q) {
        return [&c, matmul = std::make_shared<Matmul>(c, spec_of(op, q)), op, n = q.outputs[0].numel(),
                bias = q.has(Fp8Product::kBias), sum = q.has(Fp8Product::kSum)](const KernelArguments& a) {
          std::byte* before = op.keep_preactivation ? a.outputs[1] : a.outputs[0];
          matmul->run_scaled(a.inputs[0], a.inputs[1], reinterpret_cast<const float*>(a.inputs[2]),
                             reinterpret_cast<const float*>(a.inputs[3]), bias ? a.inputs[Fp8Product::kBias] : nullptr,
                             sum ? a.inputs[Fp8Product::kSum] : nullptr, before, a.workspace);
          if (op.activation != Activation::kNone)
            gelu(DType::kBF16, before, a.outputs[0], n, op.activation == Activation::kGeluTanh, c.stream);
        };
      },
      [&c](const Fp8Product& op, const KernelRequest& q) {
        require_fp8(c);
        Matmul(c, spec_of(op, q));  // chooses the algorithm while memory is free to try them in
        return kMatmulWorkspace;
      });
}

}  // namespace convoy::cuda
