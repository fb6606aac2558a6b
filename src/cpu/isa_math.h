// Scalar building blocks for *.isa.cpp files, written so that the compiler vectorises loops over them. Everything is in
// the instruction set's own namespace: code compiled for a newer processor must not be shared with other files by the
// linker.
#pragma once

#include <cstdint>

namespace convoy::cpu::CONVOY_ISA {

struct bf16 {
  std::uint16_t bits;
};
struct f16 {
  std::uint16_t bits;
};

static inline float bits_to_float(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
static inline std::uint32_t float_to_bits(float f) {
  return __builtin_bit_cast(std::uint32_t, f);
}

static inline float load(float v) {
  return v;
}
static inline double load(double v) {
  return v;
}
static inline float load(bf16 v) {
  return bits_to_float(static_cast<std::uint32_t>(v.bits) << 16);
}
// Branch-free half to float: normal numbers shift and rebias; a multiply puts subnormals right.
static inline float load(f16 v) {
  const std::uint32_t sign = static_cast<std::uint32_t>(v.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(v.bits & 0x7fffu) << 13;
  const float finite = bits_to_float(magnitude) * 0x1p112f;
  const bool special = magnitude >= 0x0f800000u;
  const std::uint32_t bits = special ? magnitude | 0x7f800000u : float_to_bits(finite);
  return bits_to_float(sign | bits);
}

static inline void store(float* at, float v) {
  *at = v;
}
static inline void store(double* at, double v) {
  *at = v;
}
static inline void store(bf16* at, float v) {
  const std::uint32_t u = float_to_bits(v);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (u >> 16) | 0x40u;
  at->bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
static inline void store(f16* at, float v) {
  const std::uint32_t u = float_to_bits(v);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t a = u & 0x7fffffffu;
  const std::uint32_t normal = (a + 0xfffu + ((a >> 13) & 1u) - (112u << 23)) >> 13;
  const std::uint32_t subnormal = float_to_bits(bits_to_float(a) + 0.5f) - 0x3f000000u;
  std::uint32_t h = a < 0x38800000u ? subnormal : normal;
  h = a >= 0x477ff000u ? 0x7c00u : h;
  h = a > 0x7f800000u ? 0x7e00u : h;
  at->bits = static_cast<std::uint16_t>(sign | h);
}

template <typename T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
template <typename T>
using Wide = typename WideOf<T>::type;

// e^x for float32, relative error below 2e-7: x = n·ln2 + r, a polynomial in r, n into the exponent.
static inline float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return p * bits_to_float((float_to_bits(shifted) << 23) + 0x3f800000u);
}
static inline double fast_exp(double x) {
  return __builtin_exp(x);
}

template <typename W>
static inline W sigmoid(W x) {
  return W(1) / (W(1) + fast_exp(-x));
}

static inline float error_function(float x) {
  return __builtin_erff(x);
}
static inline double error_function(double x) {
  return __builtin_erf(x);
}
static inline float square_root(float x) {
  return __builtin_sqrtf(x);
}
static inline double square_root(double x) {
  return __builtin_sqrt(x);
}

}  // namespace convoy::cpu::CONVOY_ISA
