// Normalisations. Weight gradients are summed over fixed chunks of rows, then over the chunks in order.
#include <algorithm>
#include <cstring>

#include "cpu/chunk_sums.h"
#include "cpu/registry.h"
#include "cpu/row_kernels.h"
#include "graph/ops/norm.h"

namespace convoy::cpu {
namespace {

constexpr std::int64_t kChunkRows = 32;

std::int64_t wide_size(DType dtype) {
  return static_cast<std::int64_t>(size_of(accumulation_dtype(dtype)));
}

struct Rows {
  std::int64_t rows, width, row_bytes, wide;  // wide: bytes of a statistic
  explicit Rows(const TensorSpec& spec)
      : rows(spec.shape[0]),
        width(spec.shape[1]),
        row_bytes(width * static_cast<std::int64_t>(size_of(spec.dtype))),
        wide(wide_size(spec.dtype)) {}
};

void register_rmsnorm(Registry& registry) {
  registry.add<RmsNorm>([](const RmsNorm& op, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    return [&k, s = Rows(q.outputs[0]), eps = op.eps](const KernelArguments& a) {
      const std::byte* residual = a.inputs.size() > 2 ? a.inputs[2] : nullptr;
#pragma omp parallel for schedule(static)
      for (std::int64_t r = 0; r < s.rows; ++r) {
        const std::int64_t at = r * s.row_bytes;
        k.rmsnorm(a.inputs[0] + at, residual ? residual + at : nullptr, residual ? a.outputs[2] + at : nullptr,
                  a.inputs[1], a.outputs[0] + at, eps, a.outputs[1] + r * s.wide, s.width);
      }
    };
  });
  registry.add<RmsNormGrad>(
      [](const RmsNormGrad& op, const Request& q) {
        const DType dtype = q.outputs[0].dtype;
        const RowKernels& k = row_kernels(dtype);
        return
            [&k, s = Rows(q.outputs[0]), dtype, accumulate = q.has(5), dweight = op.dweight](const KernelArguments& a) {
              const std::int64_t chunks = pieces(s.rows, kChunkRows);
              const std::byte* plus = a.inputs.size() > 4 ? a.inputs[4] : nullptr;
#pragma omp parallel for schedule(static)
              for (std::int64_t c = 0; c < chunks; ++c) {
                std::byte* partial = a.workspace + c * s.width * s.wide;
                std::memset(partial, 0, static_cast<std::size_t>(s.width * s.wide));
                for (std::int64_t r = c * kChunkRows; r < std::min(s.rows, (c + 1) * kChunkRows); ++r) {
                  const std::int64_t at = r * s.row_bytes;
                  k.rmsnorm_grad(a.inputs[0] + at, a.inputs[1] + at, a.inputs[2], a.inputs[3] + r * s.wide,
                                 plus ? plus + at : nullptr, a.outputs[0] + at, partial, s.width);
                }
              }
              if (!dweight) return;
              sum_chunks(a.workspace, chunks, s.width * s.wide, s.width, accumulation_dtype(dtype), accumulate,
                         a.outputs[1]);
            };
      },
      [](const RmsNormGrad&, const Request& q) {
        const Rows s(q.outputs[0]);
        return static_cast<std::size_t>(pieces(s.rows, kChunkRows) * s.width * s.wide);
      });
}

void register_layernorm(Registry& registry) {
  registry.add<LayerNorm>([](const LayerNorm& op, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    return [&k, s = Rows(q.outputs[0]), eps = op.eps](const KernelArguments& a) {
      const std::byte* residual = a.inputs.size() > 3 ? a.inputs[3] : nullptr;
#pragma omp parallel for schedule(static)
      for (std::int64_t r = 0; r < s.rows; ++r) {
        const std::int64_t at = r * s.row_bytes;
        k.layernorm(a.inputs[0] + at, residual ? residual + at : nullptr, residual ? a.outputs[3] + at : nullptr,
                    a.inputs[1], a.inputs[2], a.outputs[0] + at, eps, a.outputs[1] + r * s.wide,
                    a.outputs[2] + r * s.wide, s.width);
      }
    };
  });
  registry.add<LayerNormGrad>(
      [](const LayerNormGrad& op, const Request& q) {
        const DType dtype = q.outputs[0].dtype;
        const RowKernels& k = row_kernels(dtype);
        return [&k, s = Rows(q.outputs[0]), dtype, add_weight = q.has(6), add_bias = q.has(7),
                dweight = op.dweight](const KernelArguments& a) {
          const std::int64_t chunks = pieces(s.rows, kChunkRows);
          const std::int64_t sum_bytes = s.width * s.wide;
          const std::byte* plus = a.inputs.size() > 5 ? a.inputs[5] : nullptr;
#pragma omp parallel for schedule(static)
          for (std::int64_t c = 0; c < chunks; ++c) {
            std::byte* partial = a.workspace + c * 2 * sum_bytes;
            std::memset(partial, 0, static_cast<std::size_t>(2 * sum_bytes));
            for (std::int64_t r = c * kChunkRows; r < std::min(s.rows, (c + 1) * kChunkRows); ++r) {
              const std::int64_t at = r * s.row_bytes;
              k.layernorm_grad(a.inputs[0] + at, a.inputs[1] + at, a.inputs[2], a.inputs[3] + r * s.wide,
                               a.inputs[4] + r * s.wide, plus ? plus + at : nullptr, a.outputs[0] + at, partial,
                               partial + sum_bytes, s.width);
            }
          }
          if (!dweight) return;
          const DType wide = accumulation_dtype(dtype);
          sum_chunks(a.workspace, chunks, 2 * sum_bytes, s.width, wide, add_weight, a.outputs[1]);
          sum_chunks(a.workspace + sum_bytes, chunks, 2 * sum_bytes, s.width, wide, add_bias, a.outputs[2]);
        };
      },
      [](const LayerNormGrad&, const Request& q) {
        const Rows s(q.outputs[0]);
        return static_cast<std::size_t>(pieces(s.rows, kChunkRows) * 2 * s.width * s.wide);
      });
}

void register_qk_norm(Registry& registry) {
  registry.add<QkNorm>([](const QkNorm& op, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    return [&k, op, s = Rows(q.outputs[0])](const KernelArguments& a) {
      const std::int64_t head_bytes = s.row_bytes / s.width * op.head_dim;
#pragma omp parallel for schedule(static)
      for (std::int64_t r = 0; r < s.rows; ++r) {
        const std::byte* from = a.inputs[0] + r * s.row_bytes;
        std::byte* to = a.outputs[0] + r * s.row_bytes;
        for (std::int64_t h = 0; h < op.heads + op.kv_heads; ++h) {
          const bool query = h < op.heads;
          std::byte* rstd = query ? a.outputs[1] + (r * op.heads + h) * s.wide
                                  : a.outputs[2] + (r * op.kv_heads + h - op.heads) * s.wide;
          k.rmsnorm(from + h * head_bytes, nullptr, nullptr, a.inputs[query ? 1 : 2], to + h * head_bytes, op.eps, rstd,
                    op.head_dim);
        }
        const std::int64_t values = (op.heads + op.kv_heads) * head_bytes;
        std::memcpy(to + values, from + values, static_cast<std::size_t>(s.row_bytes - values));
      }
    };
  });
  registry.add<QkNormGrad>(
      [](const QkNormGrad& op, const Request& q) {
        const DType dtype = q.outputs[0].dtype;
        const RowKernels& k = row_kernels(dtype);
        return [&k, op, s = Rows(q.outputs[0]), dtype, add_q = q.has(6), add_k = q.has(7)](const KernelArguments& a) {
          const std::int64_t chunks = pieces(s.rows, kChunkRows);
          const std::int64_t sum_bytes = op.head_dim * s.wide;
          const std::int64_t head_bytes = s.row_bytes / s.width * op.head_dim;
#pragma omp parallel for schedule(static)
          for (std::int64_t c = 0; c < chunks; ++c) {
            std::byte* partial = a.workspace + c * 2 * sum_bytes;
            std::memset(partial, 0, static_cast<std::size_t>(2 * sum_bytes));
            for (std::int64_t r = c * kChunkRows; r < std::min(s.rows, (c + 1) * kChunkRows); ++r) {
              const std::byte* dy = a.inputs[0] + r * s.row_bytes;
              const std::byte* x = a.inputs[1] + r * s.row_bytes;
              std::byte* dx = a.outputs[0] + r * s.row_bytes;
              for (std::int64_t h = 0; h < op.heads + op.kv_heads; ++h) {
                const bool query = h < op.heads;
                const std::byte* rstd = query ? a.inputs[4] + (r * op.heads + h) * s.wide
                                              : a.inputs[5] + (r * op.kv_heads + h - op.heads) * s.wide;
                k.rmsnorm_grad(dy + h * head_bytes, x + h * head_bytes, a.inputs[query ? 2 : 3], rstd, nullptr,
                               dx + h * head_bytes, partial + (query ? 0 : sum_bytes), op.head_dim);
              }
              const std::int64_t values = (op.heads + op.kv_heads) * head_bytes;
              std::memcpy(dx + values, dy + values, static_cast<std::size_t>(s.row_bytes - values));
            }
          }
          if (!op.dweight) return;
          const DType wide = accumulation_dtype(dtype);
          sum_chunks(a.workspace, chunks, 2 * sum_bytes, op.head_dim, wide, add_q, a.outputs[1]);
          sum_chunks(a.workspace + sum_bytes, chunks, 2 * sum_bytes, op.head_dim, wide, add_k, a.outputs[2]);
        };
      },
      [](const QkNormGrad& op, const Request& q) {
        const Rows s(q.outputs[0]);
        return static_cast<std::size_t>(pieces(s.rows, kChunkRows) * 2 * op.head_dim * s.wide);
      });
}

}  // namespace

void register_norms(Registry& registry) {
  register_rmsnorm(registry);
  register_layernorm(registry);
  register_qk_norm(registry);
}

}  // namespace convoy::cpu
