#include "base/dtype.h"

#include <array>
#include <limits>
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
    case DType::kF8E4M3:
    case DType::kF8E5M2:
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
    case DType::kF8E4M3:
      return "f8_e4m3";
    case DType::kF8E5M2:
      return "f8_e5m2";
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

namespace {

// An 8-bit format: how many bits of mantissa, the exponent's bias, and the code of the largest finite value.
struct Format {
  int mantissa;
  int bias;
  std::uint8_t largest;
};
constexpr Format kE4M3{3, 7, 0x7e};
constexpr Format kE5M2{2, 15, 0x7b};
constexpr std::uint8_t kNaN = 0x7f;

// The float32 bits of a code without sign that is not subnormal.
constexpr std::uint32_t wide_bits(Format f, std::uint32_t code) {
  return (code << (23 - f.mantissa)) + (static_cast<std::uint32_t>(127 - f.bias) << 23);
}

float widen(Format f, std::uint8_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
  const std::uint32_t code = bits & 0x7fU;
  if (code >> f.mantissa != 0) return std::bit_cast<float>(sign | wide_bits(f, code));
  // Subnormal: a multiple of the smallest value, 2^(1 - bias - mantissa).
  const auto smallest = std::bit_cast<float>(static_cast<std::uint32_t>(128 - f.bias - f.mantissa) << 23);
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(code) * smallest));
}

std::uint8_t narrow(Format f, float value) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = u >> 24 & 0x80U;
  const std::uint32_t a = u & 0x7fffffffU;
  if (a > 0x7f800000U) return kNaN;
  const auto with_sign = [sign](std::uint32_t code) { return static_cast<std::uint8_t>(sign | code); };
  if (a >= wide_bits(f, f.largest)) return with_sign(f.largest);
  if (a < wide_bits(f, 1U << f.mantissa)) {
    // Subnormal: beside a power of two whose last place is the smallest value, the float adder rounds there.
    const std::uint32_t beside = static_cast<std::uint32_t>(151 - f.bias - f.mantissa) << 23;
    const float rounded = std::bit_cast<float>(a) + std::bit_cast<float>(beside);
    return with_sign(std::bit_cast<std::uint32_t>(rounded) - beside);
  }
  const int cut = 23 - f.mantissa;
  const std::uint32_t rounded = a + (1U << (cut - 1)) - 1 + (a >> cut & 1U) - wide_bits(f, 0);
  return with_sign(rounded >> cut);
}

}  // namespace

float to_float(F8E4M3 v) {
  if ((v.bits & 0x7fU) == kNaN) return std::numeric_limits<float>::quiet_NaN();
  return widen(kE4M3, v.bits);
}
F8E4M3 to_f8e4m3(float f) {
  return {narrow(kE4M3, f)};
}
float to_float(F8E5M2 v) {
  return to_float(F16{static_cast<std::uint16_t>(v.bits << 8)});
}
F8E5M2 to_f8e5m2(float f) {
  return {narrow(kE5M2, f)};
}

}  // namespace convoy
