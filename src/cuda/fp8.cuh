// 8-bit floating types on the device.
#pragma once

#include <cuda_fp8.h>

#include "cuda/numeric.cuh"

namespace convoy::cuda {

// Calls f.operator()<Interpretation>() with the interpretation of an 8-bit dtype.
template <typename F>
auto with_fp8(DType dtype, F&& f) {
  if (dtype == DType::kF8E4M3) return f.template operator()<__NV_E4M3>();
  check(dtype == DType::kF8E5M2, "not an 8-bit floating type");
  return f.template operator()<__NV_E5M2>();
}

// Two codes, the first in the lower byte: to nearest, ties to even, saturating.
template <__nv_fp8_interpretation_t To>
__device__ inline std::uint32_t codes_of(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, To);
}

}  // namespace convoy::cuda
