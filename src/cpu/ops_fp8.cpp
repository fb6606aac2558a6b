// Products of 8-bit factors, emulated: codes times their scale are exact in bf16, which the products of bf16 take.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "cpu/gemm.h"
#include "cpu/registry.h"
#include "graph/ops/fp8.h"

namespace convoy::cpu {
namespace {

constexpr std::int64_t kRun = 16384;  // elements of a task
constexpr std::int64_t kTile = 64;    // rows of a task that transposes

// See Fp8Scale. `largest` is the largest |x|; it may be NaN or infinite.
float scale_for(std::uint32_t largest, DType to) {
  constexpr std::uint32_t kInfinity = 0x7f800000U, kHalfway = 0x600000U, kLeast = 127 - 100;
  if (largest >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  // Both types end at 1.75 times a power of two.
  const std::uint32_t top = to == DType::kF8E4M3 ? 8 : 15;
  const std::uint32_t exponent = (largest >> 23) + ((largest & 0x7fffffU) > kHalfway ? 1 : 0);
  return std::bit_cast<float>((std::max(exponent, kLeast + top) - top) << 23);
}

float find_scale(const BF16* x, std::int64_t n, DType to) {
  std::uint32_t largest = 0;  // bits of |x| order as the values do, NaN last
#pragma omp parallel for schedule(static) reduction(max : largest)
  for (std::int64_t run = 0; run < pieces(n, kRun); ++run) {
    const std::int64_t end = std::min(n, (run + 1) * kRun);
    for (std::int64_t i = run * kRun; i < end; ++i) largest = std::max<std::uint32_t>(largest, x[i].bits & 0x7fffU);
  }
  return scale_for(largest << 16, to);
}

std::uint8_t code_of(float x, DType to) {
  return to == DType::kF8E4M3 ? to_f8e4m3(x).bits : to_f8e5m2(x).bits;
}

// `rows` or `transposed` may be null. A task's codes are made once and stand in cache for the transposition.
void quantize(const BF16* x, std::int64_t m, std::int64_t n, float scale, DType to, std::uint8_t* rows,
              std::uint8_t* transposed) {
  const float factor = 1 / scale;  // a power of two too
#pragma omp parallel for schedule(static)
  for (std::int64_t tile = 0; tile < pieces(m, kTile) * pieces(n, kTile); ++tile) {
    const std::int64_t first_row = tile / pieces(n, kTile) * kTile, first_column = tile % pieces(n, kTile) * kTile;
    const std::int64_t height = std::min(kTile, m - first_row), width = std::min(kTile, n - first_column);
    std::array<std::uint8_t, kTile * kTile> codes;
    for (std::int64_t r = 0; r < height; ++r) {
      const BF16* from = x + (first_row + r) * n + first_column;
      for (std::int64_t c = 0; c < width; ++c)
        codes[static_cast<std::size_t>(r * kTile + c)] = code_of(to_float(from[c]) * factor, to);
    }
    for (std::int64_t r = 0; rows != nullptr && r < height; ++r)
      std::memcpy(rows + (first_row + r) * n + first_column, &codes[static_cast<std::size_t>(r * kTile)],
                  static_cast<std::size_t>(width));
    for (std::int64_t c = 0; transposed != nullptr && c < width; ++c) {
      std::uint8_t* line = transposed + (first_column + c) * m + first_row;
      for (std::int64_t r = 0; r < height; ++r) line[r] = codes[static_cast<std::size_t>(r * kTile + c)];
    }
  }
}

// Codes with their scale as bf16, which holds them exactly.
void widen(const std::uint8_t* codes, std::int64_t n, float scale, DType from, BF16* to) {
  std::array<BF16, 256> values;
  for (unsigned code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    values[code] = to_bf16(scale * (from == DType::kF8E4M3 ? to_float(F8E4M3{bits}) : to_float(F8E5M2{bits})));
  }
#pragma omp parallel for schedule(static)
  for (std::int64_t run = 0; run < pieces(n, kRun); ++run) {
    const std::int64_t end = std::min(n, (run + 1) * kRun);
    for (std::int64_t i = run * kRun; i < end; ++i) to[i] = values[codes[i]];
  }
}

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

GemmSpec spec_of(const Fp8Product& op, const Request& q) {
  GemmSpec spec;
  spec.m = q.outputs[0].shape[0];
  spec.n = q.outputs[0].shape[1];
  spec.k = q.inputs[0]->shape[1];
  spec.transpose_b = true;
  spec.dtype = DType::kBF16;
  spec.out = q.outputs[0].dtype;
  spec.bias = q.has(Fp8Product::kBias);
  spec.accumulate = q.has(Fp8Product::kSum);
  spec.activation = native(op.activation);
  spec.keep_preactivation = op.keep_preactivation;
  return spec;
}

std::size_t wide_bytes(const TensorSpec& codes) {
  constexpr std::size_t kAlignment = 64;
  return (codes.bytes() * sizeof(BF16) + kAlignment - 1) / kAlignment * kAlignment;
}

void register_product(Registry& registry) {
  registry.add<Fp8Product>(
      [](const Fp8Product& op, const Request& q) {
        return
            [gemm = Gemm(spec_of(op, q)), a_spec = *q.inputs[0], b_spec = *q.inputs[1], sum = q.has(Fp8Product::kSum),
             bytes = q.outputs[0].bytes(), keep = op.keep_preactivation](const KernelArguments& a) {
              const auto factor = [&](std::size_t i, const TensorSpec& spec, std::byte* to) {
                widen(reinterpret_cast<const std::uint8_t*>(a.inputs[i]), spec.numel(),
                      *reinterpret_cast<const float*>(a.inputs[i + 2]), spec.dtype, reinterpret_cast<BF16*>(to));
              };
              std::byte* wide_b = a.workspace + wide_bytes(a_spec);
              factor(0, a_spec, a.workspace);
              factor(1, b_spec, wide_b);
              if (sum && a.inputs[Fp8Product::kSum] != a.outputs[0])
                std::memcpy(a.outputs[0], a.inputs[Fp8Product::kSum], bytes);
              const std::byte* bias = a.inputs.size() > Fp8Product::kBias ? a.inputs[Fp8Product::kBias] : nullptr;
              gemm.run({a.workspace, wide_b, bias, a.outputs[0], keep ? a.outputs[1] : nullptr,
                        wide_b + wide_bytes(b_spec)});
            };
      },
      [](const Fp8Product& op, const Request& q) {
        return wide_bytes(*q.inputs[0]) + wide_bytes(*q.inputs[1]) + Gemm(spec_of(op, q)).workspace_bytes();
      });
}

}  // namespace

void register_fp8(Registry& registry) {
  registry.add<Fp8Scale>([](const Fp8Scale& op, const Request& q) {
    return [to = op.to, n = q.inputs[0]->numel()](const KernelArguments& a) {
      *reinterpret_cast<float*>(a.outputs[0]) = find_scale(reinterpret_cast<const BF16*>(a.inputs[0]), n, to);
    };
  });
  registry.add<Fp8Quantize>([](const Fp8Quantize& op, const Request& q) {
    return [op, m = q.inputs[0]->shape[0], n = q.inputs[0]->shape[1]](const KernelArguments& a) {
      auto* first = reinterpret_cast<std::uint8_t*>(a.outputs[0]);
      std::uint8_t* transposed = !op.keeps_transposed() ? nullptr
                                 : !op.keeps_rows()     ? first
                                                        : reinterpret_cast<std::uint8_t*>(a.outputs[1]);
      quantize(reinterpret_cast<const BF16*>(a.inputs[0]), m, n, *reinterpret_cast<const float*>(a.inputs[1]), op.to,
               op.keeps_rows() ? first : nullptr, transposed);
    };
  });
  register_product(registry);
}

}  // namespace convoy::cpu
