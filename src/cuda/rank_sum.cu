#include "cuda/rank_sum.h"

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
        if (r + stride < count) sums[r] += sums[r + stride];
      }
    }
    result.v[e] = Wide<T>::out(sums[0]);
  }
  store_pack<N>(out + at * N, result);
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

}  // namespace convoy::cuda
