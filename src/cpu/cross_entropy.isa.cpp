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
  alignas(64) R part[Simd<R>::kWidth];
  Simd<R>::store(part, v);
  __builtin_memcpy(part, p, static_cast<std::size_t>(n) * sizeof(R));  // a panel may change its type in place
  return Simd<R>::load(part);
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
// unread.
template <class R, class T>
void gradient_of(const LogitPanel& p, const PanelGradient& g) {
  using S = Simd<R>;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const R* from = static_cast<const R*>(p.logits) + r * p.columns;
    auto* to = static_cast<typename T::Stored*>(p.logits) + r * p.columns;
    const R lse = static_cast<R>(g.lse[r]), uniform = static_cast<R>(g.factor * g.uniform);
    const R mass = static_cast<R>(g.factor * (1 + 2 * g.z_loss * g.lse[r]));
    const auto gradient_at = [&](typename S::V x) { return exp2_vector((x - lse) * kLog2e<R>) * mass - uniform; };
    const std::int64_t target = g.targets[r] - g.first_column;
    const bool here = target >= 0 && target < p.columns;
    R hit = 0;
    if (here) hit = gradient_at(load_part(from + target, 1, R{0}))[0] - static_cast<R>(g.factor * g.target_weight);
    std::int64_t i = 0;
    for (; i + S::kWidth <= p.columns; i += S::kWidth) store_vector<T>(to + i, gradient_at(S::load(from + i)));
    if (i < p.columns) {
      const typename S::V rest = gradient_at(load_part(from + i, p.columns - i, R{0}));
      alignas(64) typename T::Stored stored[S::kWidth];
      store_vector<T>(stored, rest);
      __builtin_memcpy(to + i, stored, static_cast<std::size_t>(p.columns - i) * sizeof(stored[0]));
    }
    const typename T::Stored value = T::put(hit);
    if (here) __builtin_memcpy(to + target, &value, sizeof(value));
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
