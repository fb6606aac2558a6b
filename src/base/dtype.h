// Element types and their conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace convoy {

enum class DType : std::uint8_t { kF32, kBF16, kF16, kF64, kI32, kI64, kU8 };

std::size_t size_of(DType dtype);
// "f32", "bf16", "f16", "f64", "i32", "i64", "u8".
std::string_view name_of(DType dtype);
// Accepts Convoy's names and those of torch and safetensors ("float32", "bfloat16", "F16", "torch.float16", "fp16").
std::optional<DType> parse_dtype(std::string_view name);
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

}  // namespace convoy
