#include "cuda/fill.h"
#include "cuda/fp8.cuh"
#include "cuda/numeric.cuh"

namespace convoy::cuda {
namespace {

__device__ float random_value(std::int64_t i, std::uint32_t number) {
  std::uint32_t h = static_cast<std::uint32_t>(i) * 0x9E3779B9u + number * 0x85EBCA6Bu;
  h = (h ^ (h >> 16)) * 0x7feb352du;
  h = (h ^ (h >> 15)) * 0x846ca68bu;
  h ^= h >> 16;
  return static_cast<float>(static_cast<std::int32_t>(h)) * 0x1p-31f;
}

template <typename T>
__global__ void fill_kernel(T* data, std::int64_t count, std::uint32_t number) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) data[i] = narrow<T>(random_value(i, number));
}

template <__nv_fp8_interpretation_t To>
__global__ void fill_codes_kernel(std::uint8_t* data, std::int64_t count, std::uint32_t number) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) data[i] = static_cast<std::uint8_t>(codes_of<To>(random_value(i, number), 0));
}

}  // namespace

void fill_random(void* data, DType dtype, std::int64_t count, std::uint32_t number, cudaStream_t stream) {
  if (is_fp8(dtype)) {
    with_fp8(dtype, [&]<__nv_fp8_interpretation_t To>() {
      fill_codes_kernel<To>
          <<<grid_of(count, 256), 256, 0, stream>>>(static_cast<std::uint8_t*>(data), count, number);
    });
  } else {
    with_type(dtype, [&]<typename T>() {
      fill_kernel<<<grid_of(count, 256), 256, 0, stream>>>(static_cast<T*>(data), count, number);
    });
  }
  check_launch("random values");
}

}  // namespace convoy::cuda
