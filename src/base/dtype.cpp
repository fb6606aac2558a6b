#include "base/dtype.h"

#include <array>
#include <string>
#include <utility>

namespace convoy {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kU8:
      return 1;
  }
  return 0;
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

std::optional<DType> parse_dtype(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  static constexpr std::array<std::pair<std::string_view, DType>, 24> kNames{{
      {"f32", DType::kF32},   {"fp32", DType::kF32},  {"float32", DType::kF32}, {"F32", DType::kF32},
      {"float", DType::kF32}, {"bf16", DType::kBF16}, {"BF16", DType::kBF16},   {"bfloat16", DType::kBF16},
      {"f16", DType::kF16},   {"fp16", DType::kF16},  {"F16", DType::kF16},     {"float16", DType::kF16},
      {"half", DType::kF16},  {"f64", DType::kF64},   {"F64", DType::kF64},     {"float64", DType::kF64},
      {"i32", DType::kI32},   {"I32", DType::kI32},   {"int32", DType::kI32},   {"i64", DType::kI64},
      {"I64", DType::kI64},   {"int64", DType::kI64}, {"u8", DType::kU8},       {"U8", DType::kU8},
  }};
  for (const auto& [key, value] : kNames) {
    if (key == name) return value;
  }
  return std::nullopt;
}

float to_float(F16 v) {
  const std::uint32_t sign = static_cast<std::uint32_t>(v.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (v.bits >> 10) & 0x1fu;
  std::uint32_t mantissa = v.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

F16 to_f16(float f) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (a >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // rounds to 65536 or more
  if (a < 0x38800000u) {
    // Subnormal: adding 0.5 lets the float adder round at the 2^-24 place.
    const float rounded = std::bit_cast<float>(a) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u))};
  }
  const std::uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u) - (112u << 23);
  return {static_cast<std::uint16_t>(sign | (rounded >> 13))};
}

}  // namespace convoy
