// Shared by the kernel tests: values as f64, stored in any floating-point type in 64-byte aligned memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

#include "base/dtype.h"

namespace convoy::cpu {

template <class T>
struct Aligned64 {
  using value_type = T;
  Aligned64() = default;
  template <class U>
  explicit Aligned64(const Aligned64<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, std::align_val_t{64}); }
  bool operator==(const Aligned64&) const { return true; }
};
using Bytes = std::vector<unsigned char, Aligned64<unsigned char>>;

template <class T>
T value_at(const Bytes& bytes, std::size_t i) {
  T v;
  std::memcpy(&v, bytes.data() + i * sizeof(T), sizeof(T));
  return v;
}
template <class T>
void set_value(Bytes& bytes, std::size_t i, T v) {
  std::memcpy(bytes.data() + i * sizeof(T), &v, sizeof(T));
}

inline Bytes stored(const std::vector<double>& values, DType dtype) {
  Bytes out(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float f = static_cast<float>(values[i]);
    if (dtype == DType::kF64) set_value(out, i, values[i]);
    if (dtype == DType::kF32) set_value(out, i, f);
    if (dtype == DType::kBF16) set_value(out, i, to_bf16(f));
    if (dtype == DType::kF16) set_value(out, i, to_f16(f));
  }
  return out;
}
inline std::vector<double> loaded(const Bytes& bytes, DType dtype) {
  std::vector<double> out(bytes.size() / size_of(dtype));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (dtype == DType::kF64) out[i] = value_at<double>(bytes, i);
    if (dtype == DType::kF32) out[i] = value_at<float>(bytes, i);
    if (dtype == DType::kBF16) out[i] = to_float(value_at<BF16>(bytes, i));
    if (dtype == DType::kF16) out[i] = to_float(value_at<F16>(bytes, i));
  }
  return out;
}
inline double rounded(double v, DType dtype) {
  return loaded(stored({v}, dtype), dtype)[0];
}
// The largest relative error of rounding to the type.
inline double epsilon(DType dtype) {
  if (dtype == DType::kF64) return 0x1p-53;
  if (dtype == DType::kBF16) return 0x1p-8;
  return dtype == DType::kF16 ? 0x1p-11 : 0x1p-24;
}

}  // namespace convoy::cpu
