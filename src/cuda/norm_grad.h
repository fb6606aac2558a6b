// Gradients of RMSNorm and LayerNorm.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace convoy::cuda {

// dy, r, plus and dr are [rows, width], weight [width], mean and rstd [rows] of f32, dweight and dbias [width] of f32.
struct NormGrad {
  const void *dy = nullptr, *r = nullptr, *weight = nullptr;
  const float *mean = nullptr, *rstd = nullptr;  // no mean: RMSNorm
  const void* plus = nullptr;                    // what dr becomes more, or null
  void* dr = nullptr;
  float *dweight = nullptr, *dbias = nullptr;  // not wanted if null
  bool add_weight = false, add_bias = false;   // to what is there
};

// Bytes of `workspace` below.
std::size_t norm_grad_workspace(DType dtype, bool layer_norm, std::int64_t rows, std::int64_t width);
void norm_grad(DType dtype, const NormGrad& of, std::int64_t rows, std::int64_t width, void* workspace,
               cudaStream_t stream);

}  // namespace convoy::cuda
