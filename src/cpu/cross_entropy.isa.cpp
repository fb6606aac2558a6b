#include "cpu/cross_entropy_kernels.h"

#include "cpu/gemm_simd.isa.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

template <class R>
constexpr R kLog2e = static_cast<R>(1.44269504088896340736);

// A last, shorter vector, filled up with `filler`.
template <class R>
typename Simd<R>::V load_part(const R* p, std::int64_t n, R filler) {
  typename Simd<R>::V v = typename Simd<R>::V{} + filler;
  for (std::int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
}

template <class R>
R row_max(const R* x, std::int64_t n) {
  using S = Simd<R>;
  auto m = load_part(x, n < S::kWidth ? n : S::kWidth, x[0]);
  for (std::int64_t i = 0; i + S::kWidth <= n; i += S::kWidth) {
    const auto v = S::load(x + i);
    m = v > m ? v : m;
  }
  R best = m[0];
  for (int i = 1; i < S::kWidth; ++i) best = m[i] > best ? m[i] : best;
  for (std::int64_t i = n / S::kWidth * S::kWidth; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

template <class R>
R row_exp_sum(const R* x, std::int64_t n, R max) {
  using S = Simd<R>;
  typename S::V total{};
  std::int64_t i = 0;
  for (; i + S::kWidth <= n; i += S::kWidth) total += exp2_vector((S::load(x + i) - max) * kLog2e<R>);
  if (i < n) total += exp2_vector((load_part(x + i, n - i, -static_cast<R>(INFINITY)) - max) * kLog2e<R>);
  return horizontal_sum<R>(total);
}

template <class R>
R row_sum(const R* x, std::int64_t n) {
  using S = Simd<R>;
  typename S::V total{};
  std::int64_t i = 0;
  for (; i + S::kWidth <= n; i += S::kWidth) total += S::load(x + i);
  if (i < n) total += load_part(x + i, n - i, R{0});
  return horizontal_sum<R>(total);
}

template <class R>
void sums_of(const LogitPanel& p, const PanelSums& out) {
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const R* x = static_cast<const R*>(p.logits) + r * p.columns;
    const R max = row_max(x, p.columns);
    static_cast<R*>(out.max)[r] = max;
    static_cast<R*>(out.exp_sum)[r] = row_exp_sum(x, p.columns, max);
    if (out.sum) static_cast<R*>(out.sum)[r] = row_sum(x, p.columns);
  }
}
void sums(const LogitPanel& p, const PanelSums& out) {
  p.f64 ? sums_of<double>(p, out) : sums_of<float>(p, out);
}

// Rows are taken in order and elements front to back, so that a narrower result never overtakes the logits still
// unread; memcpy keeps the compiler from assuming that the two types lie apart.
template <class R, class T>
void gradient_of(const LogitPanel& p, const PanelGradient& g) {
  using S = Simd<R>;
  using Stored = typename T::Stored;
  char* to = static_cast<char*>(p.logits);
  for (std::int64_t r = 0; r < p.rows; ++r, to += p.columns * static_cast<std::int64_t>(sizeof(Stored))) {
    const char* from = static_cast<const char*>(p.logits) + r * p.columns * static_cast<std::int64_t>(sizeof(R));
    const std::int64_t target = g.targets[r] - g.first_column;
    const R lse = static_cast<R>(g.lse[r]), uniform = static_cast<R>(g.factor * g.uniform);
    const R mass = static_cast<R>(g.factor * (1 + 2 * g.z_loss * g.lse[r]));
    const R hit = static_cast<R>(g.factor * g.target_weight);
    for (std::int64_t i = 0; i < p.columns; i += S::kWidth) {
      const std::int64_t n = p.columns - i < S::kWidth ? p.columns - i : S::kWidth;
      alignas(64) R x[S::kWidth] = {};
      Stored y[S::kWidth];
      if (n == S::kWidth) {
        __builtin_memcpy(x, from + i * static_cast<std::int64_t>(sizeof(R)), sizeof(x));
      } else {
        __builtin_memcpy(x, from + i * static_cast<std::int64_t>(sizeof(R)), static_cast<std::size_t>(n) * sizeof(R));
      }
      S::store(x, exp2_vector((S::load(x) - lse) * kLog2e<R>) * mass - uniform);
      if (target >= i && target < i + n) x[target - i] -= hit;
      for (int j = 0; j < S::kWidth; ++j) y[j] = T::put(x[j]);
      char* at = to + i * static_cast<std::int64_t>(sizeof(Stored));
      if (n == S::kWidth) {
        __builtin_memcpy(at, y, sizeof(y));
      } else {
        __builtin_memcpy(at, y, static_cast<std::size_t>(n) * sizeof(Stored));
      }
    }
  }
}
void gradient(const LogitPanel& p, const PanelGradient& g) {
  if (p.f64) return gradient_of<double, StoreF64>(p, g);
  g.to_bf16 ? gradient_of<float, StoreBF16>(p, g) : gradient_of<float, StoreF32>(p, g);
}

void reduce_row(int dtype, const void* from, std::int64_t stride, std::int64_t shares, std::int64_t n, void* to) {
  with_storage(dtype, [&]<class T>(T) {
    using R = typename T::Real;
    constexpr std::int64_t kChunk = 256;
    R sum[kChunk];
    for (std::int64_t i = 0; i < n; i += kChunk) {
      const std::int64_t count = n - i < kChunk ? n - i : kChunk;
      const R* share = static_cast<const R*>(from) + i;
      for (std::int64_t j = 0; j < count; ++j) sum[j] = share[j];
      for (std::int64_t s = 1; s < shares; ++s) {
        share += stride;
        for (std::int64_t j = 0; j < count; ++j) sum[j] += share[j];
      }
      store_row<T>(sum, count, static_cast<typename T::Stored*>(to) + i);
    }
  });
}

}  // namespace

const CrossEntropyKernels& cross_entropy_kernels() {
  static constexpr CrossEntropyKernels kKernels{sums, gradient, reduce_row};
  return kKernels;
}

}  // namespace convoy::cpu::CONVOY_ISA
