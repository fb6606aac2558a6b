// Vector building blocks of the product, attention and cross-entropy kernels. Compiled once per instruction set: only
// *.isa.cpp files include this, and everything lies in that instruction set's namespace.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#ifndef CONVOY_ISA
#error "only for *.isa.cpp files"
#endif

namespace convoy::cpu::CONVOY_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kRowsPerTile = 8;  // 8 x 2 accumulators, 2 vectors of B, 1 broadcast: fits 32 registers
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kRowsPerTile = 4;
#else
constexpr int kVectorBytes = 16;
constexpr int kRowsPerTile = 4;
#endif

template <class R>
struct Simd {
  static constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(R));
  typedef R V __attribute__((vector_size(kVectorBytes)));
  typedef R Unaligned __attribute__((vector_size(kVectorBytes), aligned(alignof(R)), may_alias));
  static inline V load(const R* p) { return *reinterpret_cast<const Unaligned*>(p); }
  static inline void store(R* p, V v) { *reinterpret_cast<Unaligned*>(p) = v; }
};
typedef std::int32_t IntVector __attribute__((vector_size(kVectorBytes)));

// Columns of one packed panel: two vectors.
template <class R>
constexpr int kPanel = 2 * Simd<R>::kWidth;

inline std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

// C[MR, NV vectors] (+)= A B over k. A(i, p) = a[i * row + p * col]: any layout, transposed too, as A is only
// broadcast.
template <class R, int MR, int NV>
inline void micro(std::int64_t k, const R* a, std::int64_t row, std::int64_t col, const R* b, std::int64_t ldb, R* c,
                  std::int64_t ldc, bool accumulate) {
  using S = Simd<R>;
  typename S::V acc[MR][NV];
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NV; ++j) acc[i][j] = accumulate ? S::load(c + i * ldc + j * S::kWidth) : typename S::V{};
  for (std::int64_t p = 0; p < k; ++p) {
    typename S::V bv[NV];
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) bv[j] = S::load(b + j * S::kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const R s = a[i * row];
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) acc[i][j] += s * bv[j];
    }
    a += col;
    b += ldb;
  }
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NV; ++j) S::store(c + i * ldc + j * S::kWidth, acc[i][j]);
}

// C[m, vectors] (+)= A B with B in panels of two vectors (`panel` elements apart, rows `ldb` apart); m is a multiple of
// kRowsPerTile.
template <class R>
inline void block_product(std::int64_t m, std::int64_t vectors, std::int64_t k, const R* a, std::int64_t row,
                          std::int64_t col, const R* b, std::int64_t panel, std::int64_t ldb, R* c, std::int64_t ldc,
                          bool accumulate) {
  constexpr int kW = Simd<R>::kWidth;
  std::int64_t v = 0;
  for (; v + 2 <= vectors; v += 2, b += panel)
    for (std::int64_t i = 0; i < m; i += kRowsPerTile)
      micro<R, kRowsPerTile, 2>(k, a + i * row, row, col, b, ldb, c + i * ldc + v * kW, ldc, accumulate);
  if (v < vectors)
    for (std::int64_t i = 0; i < m; i += kRowsPerTile)
      micro<R, kRowsPerTile, 1>(k, a + i * row, row, col, b, ldb, c + i * ldc + v * kW, ldc, accumulate);
}

template <class V>
inline V select(IntVector mask, V yes, V no) {
  IntVector y, n;
  __builtin_memcpy(&y, &yes, sizeof(y));
  __builtin_memcpy(&n, &no, sizeof(n));
  const IntVector r = (mask & y) | (~mask & n);
  V out;
  __builtin_memcpy(&out, &r, sizeof(out));
  return out;
}

// 2^x: split into integer and fraction f in [-1/2, 1/2], Taylor series of 2^f to degree 7 (truncation 6e-9 relative).
// Exactly 0 below -126.
inline Simd<float>::V exp2_vector(Simd<float>::V x) {
  using V = Simd<float>::V;
  const V magic = V{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const IntVector tiny = x < V{} - 126.0f;
  x = select(x > V{} + 127.0f, V{} + 127.0f, x);  // a NaN passes
  x = select(tiny, V{} - 126.0f, x);
  const V shifted = x + magic;
  const V f = x - (shifted - magic);
  V p = V{} + 1.5252733804e-5f;
  p = p * f + 1.5403530394e-4f;
  p = p * f + 1.3333558146e-3f;
  p = p * f + 9.6181291076e-3f;
  p = p * f + 5.5504108665e-2f;
  p = p * f + 2.4022650696e-1f;
  p = p * f + 6.9314718056e-1f;
  p = p * f + 1.0f;
  IntVector n, bits;
  __builtin_memcpy(&n, &shifted, sizeof(n));
  __builtin_memcpy(&bits, &p, sizeof(bits));
  bits += n << 23;  // the magic number's own bits leave at the top
  __builtin_memcpy(&p, &bits, sizeof(p));
  return select(tiny, V{}, p);
}
inline Simd<double>::V exp2_vector(Simd<double>::V x) {
  Simd<double>::V r = x;
  for (int i = 0; i < Simd<double>::kWidth; ++i) r[i] = std::exp2(x[i]);
  return r;
}

template <class R>
inline R horizontal_sum(typename Simd<R>::V v) {
  R s = 0;
  for (int i = 0; i < Simd<R>::kWidth; ++i) s += v[i];
  return s;
}

// Storage types. `Stored` is what lies in memory, `Real` what is computed with.
struct StoreF32 {
  using Stored = float;
  using Real = float;
  static inline float get(float v) { return v; }
  static inline float put(float v) { return v; }
};
struct StoreF64 {
  using Stored = double;
  using Real = double;
  static inline double get(double v) { return v; }
  static inline double put(double v) { return v; }
};
struct StoreBF16 {
  using Stored = std::uint16_t;
  using Real = float;
  static inline float get(std::uint16_t v) {
    const std::uint32_t u = static_cast<std::uint32_t>(v) << 16;
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
  }
  static inline std::uint16_t put(float f) {  // nearest even; a NaN stays one
    std::uint32_t u;
    __builtin_memcpy(&u, &f, 4);
    const std::uint32_t nan = (u >> 16) | 0x40u;
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
};
struct StoreF16 {
  using Stored = std::uint16_t;
  using Real = float;
#if defined(__F16C__)
  static inline float get(std::uint16_t v) { return _cvtsh_ss(v); }
  static inline std::uint16_t put(float f) { return static_cast<std::uint16_t>(_cvtss_sh(f, 0)); }
#else
  static inline float get(std::uint16_t v) {
    // The exponent is rebiased by a multiplication, which also normalises subnormals.
    const std::uint32_t sign = static_cast<std::uint32_t>(v & 0x8000u) << 16;
    std::uint32_t u = static_cast<std::uint32_t>(v & 0x7fffu) << 13;
    float f;
    __builtin_memcpy(&f, &u, 4);
    f *= 0x1p112f;
    __builtin_memcpy(&u, &f, 4);
    if ((v & 0x7c00u) == 0x7c00u) u |= 0x7f800000u;
    u |= sign;
    __builtin_memcpy(&f, &u, 4);
    return f;
  }
  static inline std::uint16_t put(float f) {
    std::uint32_t u;
    __builtin_memcpy(&u, &f, 4);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((u >> 13) & 0x1ffu));
    if (u >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and above
    if (u < 0x38800000u) {                                                    // subnormal: the addition rounds at 2^-24
      float a;
      __builtin_memcpy(&a, &u, 4);
      a += 0.5f;
      __builtin_memcpy(&u, &a, 4);
      return static_cast<std::uint16_t>(sign | (u - 0x3f000000u));
    }
    u += 0xfffu + ((u >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((u >> 13) - (112u << 10)));
  }
#endif
};

typedef std::uint32_t BitVector __attribute__((vector_size(kVectorBytes)));
typedef std::uint16_t HalfVector __attribute__((vector_size(kVectorBytes / 2)));
typedef std::uint16_t HalfUnaligned __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// One vector of Real from and to its storage type. May alias anything.
template <class T>
inline typename Simd<typename T::Real>::V load_vector(const typename T::Stored* p) {
  using S = Simd<typename T::Real>;
  if constexpr (__is_same(T, StoreBF16)) {
    const HalfVector half = *reinterpret_cast<const HalfUnaligned*>(p);
    return bit_cast<typename S::V>(__builtin_convertvector(half, BitVector) << 16);
  } else if constexpr (__is_same(T, StoreF16)) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    typename S::V v;
    for (int i = 0; i < S::kWidth; ++i) v[i] = T::get(p[i]);
    return v;
#endif
  } else {
    return S::load(p);
  }
}
template <class T>
inline void store_vector(typename T::Stored* p, typename Simd<typename T::Real>::V v) {
  using S = Simd<typename T::Real>;
  if constexpr (__is_same(T, StoreBF16)) {
    const BitVector u = bit_cast<BitVector>(v);
    const BitVector rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const BitVector nan = (u >> 16) | 0x40u;
    const BitVector is_nan = bit_cast<BitVector>((u & 0x7fffffffu) > 0x7f800000u);
    *reinterpret_cast<HalfUnaligned*>(p) = __builtin_convertvector((nan & is_nan) | (rounded & ~is_nan), HalfVector);
  } else if constexpr (__is_same(T, StoreF16)) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, 0));
#elif defined(__F16C__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, 0));
#else
    for (int i = 0; i < S::kWidth; ++i) p[i] = T::put(v[i]);
#endif
  } else {
    S::store(p, v);
  }
}

template <class T>
inline void load_row(const void* source, std::int64_t n, typename T::Real* to) {
  using S = Simd<typename T::Real>;
  const auto* from = static_cast<const typename T::Stored*>(source);
  std::int64_t i = 0;
  for (; i + S::kWidth <= n; i += S::kWidth) S::store(to + i, load_vector<T>(from + i));
  for (; i < n; ++i) to[i] = T::get(from[i]);
}
template <class T>
inline void store_row(const typename T::Real* from, std::int64_t n, void* target) {
  using S = Simd<typename T::Real>;
  auto* to = static_cast<typename T::Stored*>(target);
  std::int64_t i = 0;
  for (; i + S::kWidth <= n; i += S::kWidth) store_vector<T>(to + i, S::load(from + i));
  for (; i < n; ++i) to[i] = T::put(from[i]);
}

// Calls f with the storage type of a convoy::DType given as its number (f32, bf16, f16, f64 in that order).
template <class F>
inline void with_storage(int dtype, F&& f) {
  switch (dtype) {
    case 0:
      return f(StoreF32{});
    case 1:
      return f(StoreBF16{});
    case 2:
      return f(StoreF16{});
    default:
      return f(StoreF64{});
  }
}

}  // namespace convoy::cpu::CONVOY_ISA
