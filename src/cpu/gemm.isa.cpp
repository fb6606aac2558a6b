#include "cpu/gemm_kernels.h"
#include "cpu/gemm_simd.isa.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr std::int64_t kDepth = 256;  // a packed panel of B stays in the first-level cache

template <class R>
void pack_panel(const PackedProduct& p, std::int64_t k0, std::int64_t depth, std::int64_t n0, R* panel) {
  const R* b = static_cast<const R*>(p.b);
  const std::int64_t width = p.n - n0 < kPanel<R> ? p.n - n0 : kPanel<R>;
  for (std::int64_t i = 0; i < depth; ++i, panel += kPanel<R>) {
    for (std::int64_t j = 0; j < width; ++j)
      panel[j] = p.transpose_b ? b[(n0 + j) * p.ldb + k0 + i] : b[(k0 + i) * p.ldb + n0 + j];
    for (std::int64_t j = width; j < kPanel<R>; ++j) panel[j] = 0;
  }
}

// Rows [i, i + MR) of the panel; a narrow last panel and rows that are not a whole tile go through a buffer.
template <class R, int MR>
void rows_of_panel(const PackedProduct& p, std::int64_t i, std::int64_t n0, std::int64_t k0, std::int64_t depth,
                   const R* panel) {
  const std::int64_t row = p.transpose_a ? 1 : p.lda, col = p.transpose_a ? p.lda : 1;
  const R* a = static_cast<const R*>(p.a) + i * row + k0 * col;
  R* c = static_cast<R*>(p.c) + i * p.ldc + n0;
  const bool accumulate = p.accumulate || k0 > 0;
  if (n0 + kPanel<R> <= p.n) {
    micro<R, MR, 2>(depth, a, row, col, panel, kPanel<R>, c, p.ldc, accumulate);
    return;
  }
  alignas(64) R buffer[MR * kPanel<R>];
  micro<R, MR, 2>(depth, a, row, col, panel, kPanel<R>, buffer, kPanel<R>, false);
  for (int r = 0; r < MR; ++r)
    for (std::int64_t j = 0; j < p.n - n0; ++j)
      c[r * p.ldc + j] = buffer[r * kPanel<R> + j] + (accumulate ? c[r * p.ldc + j] : R{0});
}

template <class R>
void packed(const PackedProduct& p) {
  R* panel = static_cast<R*>(p.scratch);
  for (std::int64_t k0 = 0; k0 < p.k || k0 == 0; k0 += kDepth) {
    const std::int64_t depth = p.k - k0 < kDepth ? p.k - k0 : kDepth;
    for (std::int64_t n0 = 0; n0 < p.n; n0 += kPanel<R>) {
      pack_panel<R>(p, k0, depth, n0, panel);
      std::int64_t i = 0;
      for (; i + kRowsPerTile <= p.m; i += kRowsPerTile) rows_of_panel<R, kRowsPerTile>(p, i, n0, k0, depth, panel);
      for (; i < p.m; ++i) rows_of_panel<R, 1>(p, i, n0, k0, depth, panel);
    }
  }
  if (!p.bias) return;
  const R* bias = static_cast<const R*>(p.bias);
  for (std::int64_t i = 0; i < p.m; ++i) {
    R* c = static_cast<R*>(p.c) + i * p.ldc;
    for (std::int64_t j = 0; j < p.n; ++j) c[j] += bias[j];
  }
}

std::int64_t packed_scratch_bytes() {
  return kDepth * 2 * kVectorBytes;
}
void packed_product(const PackedProduct& p) {
  p.f64 ? packed<double>(p) : packed<float>(p);
}

void load_rows(int dtype, const void* from, std::int64_t ld, std::int64_t rows, std::int64_t n, void* to,
               std::int64_t ld_to) {
  with_storage(dtype, [&]<class T>(T) {
    for (std::int64_t r = 0; r < rows; ++r)
      load_row<T>(static_cast<const typename T::Stored*>(from) + r * ld, n,
                  static_cast<typename T::Real*>(to) + r * ld_to);
  });
}
void store_rows(int dtype, const void* from, std::int64_t ld, std::int64_t rows, std::int64_t n, void* to,
                std::int64_t ld_to) {
  with_storage(dtype, [&]<class T>(T) {
    for (std::int64_t r = 0; r < rows; ++r)
      store_row<T>(static_cast<const typename T::Real*>(from) + r * ld, n,
                   static_cast<typename T::Stored*>(to) + r * ld_to);
  });
}

using V = Simd<float>::V;
constexpr float kLog2e = 1.44269504088896341f;

// x * Phi(x). Phi(-|x|) = exp(-x^2 / 2) / 2 * erfcx(|x| / sqrt 2), erfcx as a polynomial in t = 1 / (1 + z / 2),
// interpolated at Chebyshev nodes of [0.15, 1] (1.7e-7 relative).
inline V gelu_erf(V x) {
  const V ax = select(x < V{}, -x, x);
  const V t = 1.0f / (1.0f + ax * 0.353553390593f);
  V p = V{} - 0.04990566585f;
  p = p * t + 0.2382019776f;
  p = p * t - 0.3865810725f;
  p = p * t + 0.155664911f;
  p = p * t + 0.06501175047f;
  p = p * t + 0.1590811152f;
  p = p * t + 0.2562398768f;
  p = p * t + 0.2799680518f;
  p = p * t + 0.282329313f;
  p = p * t - 1.027129942e-5f;
  const V tail = 0.5f * p * exp2_vector(ax * ax * (-0.5f * kLog2e));
  return x * select(x < V{}, tail, 1.0f - tail);
}
// x (1 + tanh y) / 2 = x / (1 + exp(-2y)), y = sqrt(2 / pi) (x + 0.044715 x^3): no cancellation in the left tail.
inline V gelu_tanh(V x) {
  const V y = 0.797884560803f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exp2_vector(y * (-2.0f * kLog2e)));
}
inline double gelu(double x, int activation) {
  if (activation == 1) return 0.5 * x * std::erfc(-x * 0.70710678118654752440);
  return x / (1 + std::exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

template <class T>
void activate_row(int activation, typename T::Stored* c, std::int64_t n) {
  if constexpr (__is_same(typename T::Real, double)) {
    for (std::int64_t i = 0; i < n; ++i) c[i] = gelu(c[i], activation);
  } else {
    constexpr int kW = Simd<float>::kWidth;
    const auto apply = [&](V v) { return activation == 1 ? gelu_erf(v) : gelu_tanh(v); };
    std::int64_t i = 0;
    for (; i + kW <= n; i += kW) store_vector<T>(c + i, apply(load_vector<T>(c + i)));
    if (i == n) return;
    alignas(64) float x[kW] = {};
    load_row<T>(c + i, n - i, x);
    Simd<float>::store(x, apply(Simd<float>::load(x)));
    store_row<T>(x, n - i, c + i);
  }
}
void activate(int dtype, int activation, void* c, std::int64_t ld, std::int64_t rows, std::int64_t n, void* pre) {
  with_storage(dtype, [&]<class T>(T) {
    using Stored = typename T::Stored;
    for (std::int64_t r = 0; r < rows; ++r) {
      Stored* row = static_cast<Stored*>(c) + r * ld;
      if (pre) __builtin_memcpy(static_cast<Stored*>(pre) + r * ld, row, static_cast<std::size_t>(n) * sizeof(Stored));
      activate_row<T>(activation, row, n);
    }
  });
}

}  // namespace

const GemmKernels& gemm_kernels() {
  static constexpr GemmKernels kKernels{packed_scratch_bytes, packed_product, load_rows, store_rows, activate};
  return kKernels;
}

}  // namespace convoy::cpu::CONVOY_ISA
