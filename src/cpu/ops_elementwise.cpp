// Elementwise operations, activations and the rotary embedding.
#include <algorithm>
#include <cstring>

#include "cpu/gemm_tile.h"
#include "cpu/registry.h"
#include "cpu/row_kernels.h"
#include "graph/ops/activation.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/rotary.h"

namespace convoy::cpu {
namespace {

constexpr std::int64_t kRun = 16384;  // elements of one task
constexpr std::int64_t kRows = 16;    // rows of one task

// Calls body(first, count) for the runs of n elements.
template <typename F>
void for_runs(std::int64_t n, const F& body) {
#pragma omp parallel for schedule(static)
  for (std::int64_t run = 0; run < pieces(n, kRun); ++run) body(run * kRun, std::min(kRun, n - run * kRun));
}

template <typename F>
void for_rows(std::int64_t rows, const F& body) {
#pragma omp parallel for schedule(static)
  for (std::int64_t piece = 0; piece < pieces(rows, kRows); ++piece) {
    for (std::int64_t r = piece * kRows; r < std::min(rows, (piece + 1) * kRows); ++r) body(r);
  }
}

void register_activations(Registry& registry) {
  registry.add<SwiGlu>([](const SwiGlu&, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    const std::int64_t rows = q.outputs[0].shape[0], f = q.outputs[0].shape[1];
    const auto size = static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    return [&k, rows, f, size](const KernelArguments& a) {
      for_rows(rows, [&](std::int64_t r) { k.swiglu(a.inputs[0] + r * 2 * f * size, a.outputs[0] + r * f * size, f); });
    };
  });
  registry.add<SwiGluGrad>([](const SwiGluGrad&, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    const std::int64_t rows = q.outputs[0].shape[0], f = q.outputs[0].shape[1] / 2;
    const auto size = static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    return [&k, rows, f, size](const KernelArguments& a) {
      for_rows(rows, [&](std::int64_t r) {
        k.swiglu_grad(a.inputs[0] + r * f * size, a.inputs[1] + r * 2 * f * size, a.outputs[0] + r * 2 * f * size, f);
      });
    };
  });
  // The same code as a product's fused activation, so that fusing changes no bit.
  registry.add<Gelu>([](const Gelu& op, const Request& q) {
    const DType dtype = q.outputs[0].dtype;
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    return [dtype, n = q.outputs[0].numel(), size, kind = op.tanh ? 2 : 1](const KernelArguments& a) {
      for_runs(n, [&](std::int64_t i, std::int64_t count) {
        std::byte* y = a.outputs[0] + i * size;
        if (a.inputs[0] != a.outputs[0]) std::memcpy(y, a.inputs[0] + i * size, static_cast<std::size_t>(count * size));
        active_gemm_kernels().activate(static_cast<int>(dtype), kind, y, count, 1, count, nullptr);
      });
    };
  });
  registry.add<GeluGrad>([](const GeluGrad& op, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    const auto size = static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    return [&k, n = q.outputs[0].numel(), size, tanh = op.tanh](const KernelArguments& a) {
      for_runs(n, [&](std::int64_t i, std::int64_t count) {
        k.gelu_grad(a.inputs[0] + i * size, a.inputs[1] + i * size, a.outputs[0] + i * size, count, tanh);
      });
    };
  });
}

void register_rotary(Registry& registry) {
  registry.add<Rotary>([](const Rotary& op, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    const std::int64_t rows = q.outputs[0].shape[0], width = q.outputs[0].shape[1];
    const auto row_bytes = width * static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    const std::int64_t half = op.rotary_dim / 2;
    return [&k, op, rows, row_bytes, half](const KernelArguments& a) {
      const auto* cosines = reinterpret_cast<const float*>(a.inputs[1]);
      const auto* sines = reinterpret_cast<const float*>(a.inputs[2]);
      const auto* positions = reinterpret_cast<const std::int32_t*>(a.inputs[3]);
      for_rows(rows, [&](std::int64_t r) {
        const std::byte* from = a.inputs[0] + r * row_bytes;
        std::byte* to = a.outputs[0] + r * row_bytes;
        if (from != to) std::memcpy(to, from, static_cast<std::size_t>(row_bytes));
        const std::int64_t at = positions[r] * half;
        k.rotary(to, to, cosines + at, sines + at, op.heads, op.head_dim, half,
                 op.pairing == RotaryPairing::kInterleaved, op.inverse);
      });
    };
  });
}

}  // namespace

void register_elementwise(Registry& registry) {
  registry.add<Add>([](const Add&, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    const auto size = static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    return [&k, n = q.outputs[0].numel(), size](const KernelArguments& a) {
      for_runs(n, [&](std::int64_t i, std::int64_t count) {
        k.add(a.inputs[0] + i * size, a.inputs[1] + i * size, a.outputs[0] + i * size, count);
      });
    };
  });
  registry.add<Scale>([](const Scale& op, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    const auto size = static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    return [&k, n = q.outputs[0].numel(), size, factor = op.factor](const KernelArguments& a) {
      for_runs(n, [&](std::int64_t i, std::int64_t count) {
        k.scale(factor, a.inputs[0] + i * size, a.outputs[0] + i * size, count);
      });
    };
  });
  registry.add<Zeros>([](const Zeros& op, const Request&) {
    return [bytes = op.spec.bytes()](const KernelArguments& a) { std::memset(a.outputs[0], 0, bytes); };
  });
  registry.add<Dropout>([](const Dropout& op, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    const std::int64_t rows = q.outputs[0].shape[0], width = q.outputs[0].shape[1];
    const auto size = static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    return [&k, op, rows, width, size](const KernelArguments& a) {
      const auto* keys = reinterpret_cast<const std::int64_t*>(a.inputs[1]);
      for_rows(rows, [&](std::int64_t r) {
        k.dropout(a.inputs[0] + r * width * size, a.outputs[0] + r * width * size, width, op.p, op.seed, op.use,
                  keys[r]);
      });
    };
  });
  register_activations(registry);
  register_rotary(registry);
}

}  // namespace convoy::cpu
