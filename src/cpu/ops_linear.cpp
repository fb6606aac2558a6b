// Matrix products with weights, and the gradients of biases.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/chunk_sums.h"
#include "cpu/gemm.h"
#include "cpu/registry.h"
#include "cpu/row_kernels.h"
#include "graph/ops/linear.h"

namespace convoy::cpu {
namespace {

constexpr std::int64_t kChunkRows = 64;

Activation native(convoy::Activation activation) {
  switch (activation) {
    case convoy::Activation::kNone:
      return Activation::kNone;
    case convoy::Activation::kGeluErf:
      return Activation::kGeluErf;
    case convoy::Activation::kGeluTanh:
      return Activation::kGeluTanh;
  }
  return Activation::kNone;
}

template <typename O>
GemmSpec spec_of(const O& op, const Request& q) {
  const Product product = product_of(op, q.inputs, q.outputs);
  GemmSpec spec;
  spec.m = product.m;
  spec.n = product.n;
  spec.k = product.k;
  spec.transpose_a = product.transpose_a;
  spec.transpose_b = product.transpose_b;
  spec.dtype = q.inputs[0]->dtype;
  spec.out = q.outputs[0].dtype;
  if constexpr (std::is_same_v<O, Linear>) {
    spec.bias = q.has(2);
    spec.activation = native(op.activation);
    spec.keep_preactivation = op.keep_preactivation;
  } else {
    spec.accumulate = q.has(2);
  }
  return spec;
}

template <typename O>
std::size_t product_workspace(const O& op, const Request& q) {
  return Gemm(spec_of(op, q)).workspace_bytes();
}

void copy_parallel(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::int64_t kPiece = 1 << 18;
  const auto total = static_cast<std::int64_t>(bytes);
#pragma omp parallel for schedule(static)
  for (std::int64_t piece = 0; piece < pieces(total, kPiece); ++piece) {
    const std::int64_t at = piece * kPiece;
    std::memcpy(to + at, from + at, static_cast<std::size_t>(std::min(kPiece, total - at)));
  }
}

void register_bias_grad(Registry& registry) {
  registry.add<BiasGrad>(
      [](const BiasGrad&, const Request& q) {
        const DType dtype = q.inputs[0]->dtype;
        const RowKernels& k = row_kernels(dtype);
        const std::int64_t rows = q.inputs[0]->shape[0], n = q.inputs[0]->shape[1];
        const auto row_bytes = n * static_cast<std::int64_t>(size_of(dtype));
        const DType wide = q.outputs[0].dtype;
        const auto sum_bytes = n * static_cast<std::int64_t>(size_of(wide));
        return [&k, rows, n, row_bytes, wide, sum_bytes, accumulate = q.has(1)](const KernelArguments& a) {
          const std::int64_t chunks = pieces(rows, kChunkRows);
#pragma omp parallel for schedule(static)
          for (std::int64_t c = 0; c < chunks; ++c) {
            std::byte* partial = a.workspace + c * sum_bytes;
            std::memset(partial, 0, static_cast<std::size_t>(sum_bytes));
            for (std::int64_t r = c * kChunkRows; r < std::min(rows, (c + 1) * kChunkRows); ++r) {
              k.accumulate(a.inputs[0] + r * row_bytes, partial, n);
            }
          }
          sum_chunks(a.workspace, chunks, sum_bytes, n, wide, accumulate, a.outputs[0]);
        };
      },
      [](const BiasGrad&, const Request& q) {
        return static_cast<std::size_t>(pieces(q.inputs[0]->shape[0], kChunkRows)) * q.outputs[0].bytes();
      });
}

}  // namespace

void register_linear(Registry& registry) {
  registry.add<Linear>(
      [](const Linear& op, const Request& q) {
        return [gemm = Gemm(spec_of(op, q)), keep = op.keep_preactivation](const KernelArguments& a) {
          const std::byte* bias = a.inputs.size() > 2 ? a.inputs[2] : nullptr;
          gemm.run({a.inputs[0], a.inputs[1], bias, a.outputs[0], keep ? a.outputs[1] : nullptr, a.workspace});
        };
      },
      product_workspace<Linear>);
  registry.add<LinearInputGrad>(
      [](const LinearInputGrad& op, const Request& q) {
        return [gemm = Gemm(spec_of(op, q)), accumulate = q.has(2),
                bytes = q.outputs[0].bytes()](const KernelArguments& a) {
          if (accumulate && a.inputs[2] != a.outputs[0]) copy_parallel(a.outputs[0], a.inputs[2], bytes);
          gemm.run({a.inputs[0], a.inputs[1], nullptr, a.outputs[0], nullptr, a.workspace});
        };
      },
      product_workspace<LinearInputGrad>);
  registry.add<LinearWeightGrad>(
      [](const LinearWeightGrad& op, const Request& q) {
        return [gemm = Gemm(spec_of(op, q)), product = product_of(op, q.inputs, q.outputs)](const KernelArguments& a) {
          gemm.run({a.inputs[product.a], a.inputs[product.b], nullptr, a.outputs[0], nullptr, a.workspace});
        };
      },
      product_workspace<LinearWeightGrad>);
  register_bias_grad(registry);
}

}  // namespace convoy::cpu
