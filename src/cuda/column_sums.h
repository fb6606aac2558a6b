// Sums over rows in a fixed order: partial sums of chunks of rows, then over the chunks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/dtype.h"

namespace convoy::cuda {

// out [columns]; `accumulate`: added to what is there.
struct PartialSum {
  float* out;
  std::int64_t columns;
  bool accumulate;
};
// The columns of partial [chunks, all columns of `sums`], each the sum over the chunks, go to one output after another,
// two at most.
void sum_partials(const float* partial, std::int64_t chunks, std::initializer_list<PartialSum> sums,
                  cudaStream_t stream);

// out[n] (+)= column sums of x [rows, n].
std::size_t column_sums_workspace(std::int64_t rows, std::int64_t n);
void column_sums(DType dtype, const void* x, std::int64_t rows, std::int64_t n, bool accumulate, float* out,
                 void* workspace, cudaStream_t stream);

}  // namespace convoy::cuda
