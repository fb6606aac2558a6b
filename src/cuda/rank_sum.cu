#include "cuda/rank_sum.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/numeric.cuh"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 256;

template <typename T>
struct Wide {
  using type = float;
  __device__ static float in(T x) { return widen(x); }
  __device__ static T out(float x) { return narrow<T>(x); }
};
template <>
struct Wide<double> {
  using type = double;
  __device__ static double in(double x) { return x; }
  __device__ static double out(double x) { return x; }
};

// 16-bit sums are rounded at every addition, as in comm/tree_sum.cpp.
template <typename T>
__device__ typename Wide<T>::type sum_of(typename Wide<T>::type a, typename Wide<T>::type b) {
  return Wide<T>::in(Wide<T>::out(a + b));
}

struct Operands {
  const std::byte* of[kMostSummedRanks];
};

// Ranks: their number, or 0 where only `ranks` knows it.
template <typename T, int N, int Ranks>
__global__ void rank_sum_kernel(Operands operands, int ranks, T* out, std::int64_t packs) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (at >= packs) return;
  using W = typename Wide<T>::type;
  constexpr int kMost = Ranks > 0 ? Ranks : kMostSummedRanks;
  const int count = Ranks > 0 ? Ranks : ranks;
  Pack<T, N> loaded[kMost];
#pragma unroll
  for (int r = 0; r < kMost; ++r) {
    if (r < count) loaded[r] = load_pack<N>(reinterpret_cast<const T*>(operands.of[r]) + at * N);
  }
  Pack<T, N> result;
#pragma unroll
  for (int e = 0; e < N; ++e) {
    W sums[kMost];
#pragma unroll
    for (int r = 0; r < kMost; ++r) sums[r] = r < count ? Wide<T>::in(loaded[r].v[e]) : W(0);
#pragma unroll
    for (int stride = 1; stride < kMost; stride *= 2) {
#pragma unroll
      for (int r = 0; r + stride < kMost; r += 2 * stride) {
        if (r + stride < count) sums[r] = sum_of<T>(sums[r], sums[r + stride]);
      }
    }
    result.v[e] = Wide<T>::out(sums[0]);
  }
  store_pack<N>(out + at * N, result);
}

struct ManyOperands {
  const std::byte* of[kMostManySummed];
};

// Like a binary counter: a sum of 2^l operands waits on level l for its neighbour. The number of operands is the same
// for all threads, so no branch parts them.
template <typename T, int N>
__global__ void many_sum_kernel(ManyOperands operands, int count, T* out, std::int64_t packs) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (at >= packs) return;
  using W = typename Wide<T>::type;
  constexpr int kLevels = 9;  // 2^8 operands
  W levels[kLevels][N];
  for (int i = 0; i < count; ++i) {
    const Pack<T, N> loaded = load_pack<N>(reinterpret_cast<const T*>(operands.of[i]) + at * N);
    W carry[N];
#pragma unroll
    for (int e = 0; e < N; ++e) carry[e] = Wide<T>::in(loaded.v[e]);
    bool carried = true;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if (carried && (i >> level & 1) != 0) {
#pragma unroll
        for (int e = 0; e < N; ++e) carry[e] = sum_of<T>(levels[level][e], carry[e]);
      } else if (carried) {
        carried = false;
#pragma unroll
        for (int e = 0; e < N; ++e) levels[level][e] = carry[e];
      }
    }
  }
  // What is left has no neighbour of its size: the smaller (right) into the larger.
  W sum[N];
  bool first = true;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if ((count >> level & 1) == 0) continue;
#pragma unroll
    for (int e = 0; e < N; ++e) sum[e] = first ? levels[level][e] : sum_of<T>(levels[level][e], sum[e]);
    first = false;
  }
  Pack<T, N> result;
#pragma unroll
  for (int e = 0; e < N; ++e) result.v[e] = Wide<T>::out(sum[e]);
  store_pack<N>(out + at * N, result);
}

template <typename T>
void launch_many(std::span<const std::byte* const> from, std::byte* to, std::int64_t count, cudaStream_t stream) {
  constexpr int kPack = static_cast<int>(16 / sizeof(T));
  ManyOperands operands{};
  bool whole = reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
  for (std::size_t r = 0; r < from.size(); ++r) {
    operands.of[r] = from[r];
    whole = whole && reinterpret_cast<std::uintptr_t>(from[r]) % 16 == 0;
  }
  T* out = reinterpret_cast<T*>(to);
  const int ranks = static_cast<int>(from.size());
  const std::int64_t packs = whole ? count / kPack : 0;
  if (packs > 0) many_sum_kernel<T, kPack><<<grid_of(packs, kBlock), kBlock, 0, stream>>>(operands, ranks, out, packs);
  for (std::size_t r = 0; r < from.size(); ++r) operands.of[r] += packs * 16;
  const std::int64_t rest = count - packs * kPack;
  if (rest > 0)
    many_sum_kernel<T, 1><<<grid_of(rest, kBlock), kBlock, 0, stream>>>(operands, ranks, out + packs * kPack, rest);
  check_launch("a sum over ranks");
}

template <typename T, int N>
void launch(const Operands& operands, int ranks, T* out, std::int64_t packs, cudaStream_t stream) {
  if (packs == 0) return;
  const unsigned grid = grid_of(packs, kBlock);
  switch (ranks) {
    case 2:
      rank_sum_kernel<T, N, 2><<<grid, kBlock, 0, stream>>>(operands, ranks, out, packs);
      break;
    case 4:
      rank_sum_kernel<T, N, 4><<<grid, kBlock, 0, stream>>>(operands, ranks, out, packs);
      break;
    case 8:
      rank_sum_kernel<T, N, 8><<<grid, kBlock, 0, stream>>>(operands, ranks, out, packs);
      break;
    default:
      rank_sum_kernel<T, N, 0><<<grid, kBlock, 0, stream>>>(operands, ranks, out, packs);
  }
  check_launch("a sum over ranks");
}

template <typename T>
void launch_for(const RankOperands& from, int ranks, std::byte* to, std::int64_t count, cudaStream_t stream) {
  constexpr int kPack = static_cast<int>(16 / sizeof(T));
  Operands operands{};
  bool whole = reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
  for (int r = 0; r < ranks; ++r) {
    operands.of[r] = from[static_cast<std::size_t>(r)];
    whole = whole && reinterpret_cast<std::uintptr_t>(operands.of[r]) % 16 == 0;
  }
  T* out = reinterpret_cast<T*>(to);
  const std::int64_t packs = whole ? count / kPack : 0;
  launch<T, kPack>(operands, ranks, out, packs, stream);
  for (int r = 0; r < ranks; ++r) operands.of[r] += packs * 16;
  launch<T, 1>(operands, ranks, out + packs * kPack, count - packs * kPack, stream);
}

}  // namespace

void launch_rank_sum(DType dtype, const RankOperands& operands, int ranks, std::byte* out, std::int64_t count,
                     cudaStream_t stream) {
  if (dtype == DType::kF64) return launch_for<double>(operands, ranks, out, count, stream);
  with_type(dtype, [&]<typename T>() { launch_for<T>(operands, ranks, out, count, stream); });
}

void launch_rank_sum(DType dtype, std::span<const std::byte* const> operands, std::byte* out, std::int64_t count,
                     cudaStream_t stream) {
  check(!operands.empty() && operands.size() <= kMostManySummed, "a sum over no ranks, or over more than 256");
  if (operands.size() <= kMostSummedRanks) {
    RankOperands few{};
    std::copy(operands.begin(), operands.end(), few.begin());
    return launch_rank_sum(dtype, few, static_cast<int>(operands.size()), out, count, stream);
  }
  if (dtype == DType::kF64) return launch_many<double>(operands, out, count, stream);
  with_type(dtype, [&]<typename T>() { launch_many<T>(operands, out, count, stream); });
}

}  // namespace convoy::cuda
