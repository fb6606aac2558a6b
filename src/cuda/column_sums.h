// Sums over rows in a fixed order: partial sums of chunks of rows, then over the chunks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace convoy::cuda {

// out[c] (+)= sum over chunks of partial[chunk * stride + c].
void sum_partials(const float* partial, std::int64_t chunks, std::int64_t stride, std::int64_t columns, bool accumulate,
                  float* out, cudaStream_t stream);

// out[n] (+)= column sums of x [rows, n].
std::size_t column_sums_workspace(std::int64_t rows, std::int64_t n);
void column_sums(DType dtype, const void* x, std::int64_t rows, std::int64_t n, bool accumulate, float* out,
                 void* workspace, cudaStream_t stream);

}  // namespace convoy::cuda
