// Element types and their conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace convoy {

// The 8-bit floating types exist only inside a step, as operands of matrix products.
enum class DType : std::uint8_t { kF32, kBF16, kF16, kF64, kI32, kI64, kU8, kF8E4M3, kF8E5M2 };

std::size_t size_of(DType dtype);
// "f32", "bf16", "f16", "f64", "i32", "i64", "u8", "f8_e4m3", "f8_e5m2".
std::string_view name_of(DType dtype);
// Accepts Convoy's names and those of torch and safetensors ("float32", "bfloat16", "F16", "torch.float16", "fp16") of
// all but the 8-bit floating types, which neither settings nor files may name.
std::optional<DType> parse_dtype(std::string_view name);
// Types that a run can compute in.
inline bool is_floating(DType d) {
  return d == DType::kF32 || d == DType::kBF16 || d == DType::kF16 || d == DType::kF64;
}

// bfloat16: the upper half of a float32. Rounds to nearest, ties to even; keeps NaN a NaN.
struct BF16 {
  std::uint16_t bits;
};
inline float to_float(BF16 v) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(v.bits) << 16);
}
inline BF16 to_bf16(float f) {
  std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  u += 0x7fffu + ((u >> 16) & 1u);
  return {static_cast<std::uint16_t>(u >> 16)};
}

// bfloat16 above or below `f`, with probabilities that give f in the mean; `bits` are 16 random bits.
inline BF16 round_at_random(float f, std::uint32_t bits) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  if ((u & 0x7f800000u) == 0x7f800000u) return to_bf16(f);
  return {static_cast<std::uint16_t>((u + bits) >> 16)};
}

// IEEE binary16. Rounds to nearest, ties to even; overflows to infinity.
struct F16 {
  std::uint16_t bits;
};
float to_float(F16 v);
F16 to_f16(float f);

// The 8-bit types of Micikevicius et al., "FP8 Formats for Deep Learning", 2022. Both round to nearest, ties to even,
// and saturate: what is too large, infinities too, becomes the largest finite value; NaN stays NaN (0x7f).
// E4M3: 2^-9 … 448; no infinities.
struct F8E4M3 {
  std::uint8_t bits;
};
float to_float(F8E4M3 v);
F8E4M3 to_f8e4m3(float f);
// E5M2: 2^-16 … 57344; the upper half of a binary16.
struct F8E5M2 {
  std::uint8_t bits;
};
float to_float(F8E5M2 v);
F8E5M2 to_f8e5m2(float f);
inline bool is_fp8(DType d) {
  return d == DType::kF8E4M3 || d == DType::kF8E5M2;
}

}  // namespace convoy
