// Random values for timing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace convoy::cuda {

// Values in [-1, 1) that depend on (stream number, index).
void fill_random(void* data, DType dtype, std::int64_t count, std::uint32_t number, cudaStream_t stream);

}  // namespace convoy::cuda
