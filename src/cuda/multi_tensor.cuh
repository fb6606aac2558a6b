// Many tensors in one launch: small ones would each take longer to start than to run.
#pragma once

#include <cstdint>

namespace convoy::cuda {

// The tensor of a block of threads; `begin` has the first block of each of `count` tensors.
__device__ inline int tensor_of(const std::int32_t* begin, int count, int block) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (begin[middle] <= block)
      low = middle;
    else
      high = middle;
  }
  return low;
}

}  // namespace convoy::cuda
