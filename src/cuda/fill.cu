#include "cuda/fill.h"
#include "cuda/numeric.cuh"

namespace convoy::cuda {
namespace {

template <typename T>
__global__ void fill_kernel(T* data, std::int64_t count, std::uint32_t number) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  std::uint32_t h = static_cast<std::uint32_t>(i) * 0x9E3779B9u + number * 0x85EBCA6Bu;
  h = (h ^ (h >> 16)) * 0x7feb352du;
  h = (h ^ (h >> 15)) * 0x846ca68bu;
  h ^= h >> 16;
  data[i] = narrow<T>(static_cast<float>(static_cast<std::int32_t>(h)) * 0x1p-31f);
}

}  // namespace

void fill_random(void* data, DType dtype, std::int64_t count, std::uint32_t number, cudaStream_t stream) {
  with_type(dtype, [&]<typename T>() {
    fill_kernel<<<grid_of(count, 256), 256, 0, stream>>>(static_cast<T*>(data), count, number);
  });
  check_launch("random values");
}

}  // namespace convoy::cuda
