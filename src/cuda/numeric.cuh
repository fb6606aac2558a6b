// Arithmetic that the kernels share: 16-bit types, packs of elements that move as 16 bytes, sums over a block.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"
#include "cuda/cuda_check.h"

namespace convoy::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

__device__ inline float widen(float x) {
  return x;
}
__device__ inline float widen(bf16 x) {
  return __bfloat162float(x);
}
__device__ inline float widen(f16 x) {
  return __half2float(x);
}
template <typename T>
__device__ T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 narrow<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline f16 narrow<f16>(float x) {
  return __float2half_rn(x);
}

// N elements that are loaded and stored together; the address is a multiple of their size, of 16 bytes at most.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T v[N];
};
// Each 16 bytes, or the few that there are, as one access: left to itself the compiler takes some packs apart.
template <int kBytes>
using PackBits = std::conditional_t<
    kBytes % 16 == 0, uint4,
    std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, std::uint32_t, std::uint16_t>>>;
template <int N, typename T>
__device__ inline Pack<T, N> load_pack(const T* at) {
  using Bits = PackBits<static_cast<int>(sizeof(Pack<T, N>))>;
  Bits bits[sizeof(Pack<T, N>) / sizeof(Bits)];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(bits) / sizeof(Bits)); ++i)
    bits[i] = reinterpret_cast<const Bits*>(at)[i];
  Pack<T, N> pack;
  memcpy(&pack, bits, sizeof(pack));
  return pack;
}
template <int N, typename T>
__device__ inline void store_pack(T* at, const Pack<T, N>& pack) {
  using Bits = PackBits<static_cast<int>(sizeof(Pack<T, N>))>;
  Bits bits[sizeof(Pack<T, N>) / sizeof(Bits)];
  memcpy(bits, &pack, sizeof(pack));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(bits) / sizeof(Bits)); ++i) reinterpret_cast<Bits*>(at)[i] = bits[i];
}

// 2^x to about 2^-22; results below the normal numbers are 0.
__device__ inline float fast_exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

// The sum over all threads of a block (a multiple of 32), in all threads, in a fixed order. `shared` holds 33 floats.
__device__ inline float block_sum(float x, float* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  x = warp_sum(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  if (warp == 0) {
    x = warp_sum(lane < warps ? shared[lane] : 0.0f);
    if (lane == 0) shared[32] = x;
  }
  __syncthreads();
  x = shared[32];
  return x;
}

__host__ __device__ constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
inline unsigned grid_of(std::int64_t threads, int block) {
  return static_cast<unsigned>(ceil_div(threads, block));
}

// Calls f.operator()<T>() with the C++ type of a floating dtype; CUDA tensors are never float64.
template <typename F>
auto with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f.template operator()<float>();
    case DType::kBF16:
      return f.template operator()<bf16>();
    case DType::kF16:
      return f.template operator()<f16>();
    default:
      throw internal_error("the CUDA device computes in f32, bf16 and f16");
  }
}

inline bool aligned16(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

}  // namespace convoy::cuda
