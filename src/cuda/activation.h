// Activations that other operations apply to their results.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace convoy::cuda {

// y = gelu(x), which may be one buffer; erf form unless `tanh_form`.
void gelu(DType dtype, const void* x, void* y, std::int64_t n, bool tanh_form, cudaStream_t stream);

}  // namespace convoy::cuda
