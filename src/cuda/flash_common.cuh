// What the kernels of attention share: the job they are given, the seen ranges, dropout, and the launch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "cuda/cuda_check.h"
#include "cuda/flash_attention.h"
#include "cuda/flash_ptx.cuh"
#include "cuda/numeric.cuh"
#include "cuda/philox.cuh"

namespace convoy::cuda {

constexpr int kMaxHeadDim = 256;
constexpr float kLog2e = 1.44269504088896340736f;

// Rows of one block of each kernel; the hulls in the workspace follow them.
struct FlashTiles {
  int forward_queries, dq_queries, dkv_keys;
};

struct FlashJob {
  int tokens, keys, heads, kv_heads, group, head_dim;
  bool cross;                          // the keys are another sequence's
  std::int64_t q_row, kv_row, o_row;  // elements from a row of q, of k and v, of o to the next
  bool wide;                // rows may be copied by 16 bytes
  float scale, scale_log2;  // scale_log2: in units of powers of two
  // A probability is kept if the upper 24 random bits are >= drop_below; 0 = no dropout.
  std::uint32_t drop_below;
  float keep_scale;
  std::uint32_t use_word, seed[2];
  const std::int32_t* first_key;  // of the query's document or range: dropout counts keys from there
  const std::int32_t* end_key;    // of the query's range, for cross-attention
  const std::int64_t* token_keys;
  const void *q, *k, *v, *o_in, *d_o;
  void *o, *dq, *dk, *dv;
  float* lse;
  // The seen range [x, y) of each query (keys) and of each key (queries), and the hull of those of each block. In
  // cross-attention a key's range holds the queries that see it, but others too.
  int2 *key_range, *key_hull, *query_range, *query_hull;
  float *lse2, *delta;  // [H, tokens]: lse in powers of two, rowsum(dO o)
};

template <auto kKernel>
void launch(cudaStream_t stream, dim3 grid, int threads, std::size_t shared, const FlashJob& job) {
  // Once per instance, and with the largest size: an instance always asks for the same.
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  check_cuda(allowed, "attention: shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kKernel, job), "attention: launch");
  check_launch("attention: launch");
}

// --- dropout -------------------------------------------------------------------------------------------------------

// Bit i: whether the probability of the query and key first_key + i is kept, for kBits (at most 32) keys. Keys before
// the query's document give bits of no meaning.
template <int kBits>
__device__ __forceinline__ std::uint32_t keep_bits(const FlashJob& job, int head, int query, int first_key) {
  if (query >= job.tokens) return 0;
  const int relative = first_key - job.first_key[query];
  const std::uint64_t token = static_cast<std::uint64_t>(job.token_keys[query]);
  const std::uint32_t group = static_cast<std::uint32_t>(relative >> 2),
                      shift = static_cast<std::uint32_t>(relative) & 3;
  std::uint64_t bits = 0;
  // A group more than kBits / 4, as the keys need not begin with a group. Rolled: the generator is long.
#pragma unroll 1
  for (int g = 0; g <= kBits / 4; ++g) {
    const uint4 r = philox(
        make_uint4(group + static_cast<std::uint32_t>(g), job.use_word + static_cast<std::uint32_t>(head),
                   static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(token >> 32)),
        job.seed[0], job.seed[1]);
    std::uint32_t four = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) four |= static_cast<std::uint32_t>((philox_word(r, i) >> 8) >= job.drop_below) << i;
    bits |= static_cast<std::uint64_t>(four) << (4 * g);
  }
  return static_cast<std::uint32_t>(bits >> shift);
}

// --- sums over lanes -----------------------------------------------------------------------------------------------

// Over the kLanes neighbours (a power of two) that share the upper bits of their lane.
template <int kLanes>
__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
  for (int x = kLanes / 2; x > 0; x /= 2) v += __shfl_xor_sync(0xffffffffu, v, x);
  return v;
}
template <int kLanes>
__device__ __forceinline__ float lanes_max(float v) {
#pragma unroll
  for (int x = kLanes / 2; x > 0; x /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, x));
  return v;
}

// The head sizes with kernels of their own; others are padded to the next with zeros.
template <class Body>
auto for_padded_dim(int head_dim, Body body) {
  if (head_dim <= 64) return body(std::integral_constant<int, 64>{});
  if (head_dim <= 96) return body(std::integral_constant<int, 96>{});
  if (head_dim <= 128) return body(std::integral_constant<int, 128>{});
  if (head_dim <= 192) return body(std::integral_constant<int, 192>{});
  return body(std::integral_constant<int, 256>{});
}

// --- the kernels' entries ------------------------------------------------------------------------------------------

// f32 by plain arithmetic.
FlashTiles simt_tiles();
void simt_forward(cudaStream_t stream, const FlashJob& job);
void simt_backward(cudaStream_t stream, const FlashJob& job);

// 16-bit types by tensor cores; T is Half or Bfloat.
int forward_queries(int head_dim);
FlashTiles mma_tiles(int head_dim);
template <class T>
void mma_forward(cudaStream_t stream, const FlashJob& job);
template <class T>
void mma_backward_keys(cudaStream_t stream, const FlashJob& job);
template <class T>
void mma_backward_queries(cudaStream_t stream, const FlashJob& job);

}  // namespace convoy::cuda
