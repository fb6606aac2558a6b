// A block takes a row. Few instructions an element: exponentials and conversions take longer than the memory.
#include "cuda/cross_entropy.h"

#include <cfloat>

#include "cuda/numeric.cuh"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 1024;
constexpr float kLog2E = 1.4426950408889634f;

struct Best {
  float value;
  std::int32_t index;
};
__device__ inline Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}
__device__ inline Best warp_best(Best best) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    best = better(best, {__shfl_xor_sync(~0u, best.value, offset), __shfl_xor_sync(~0u, best.index, offset)});
  }
  return best;
}

// What a thread knows of its packs of a row: the running maximum and the sum of exponentials under it; for smoothing
// (kPlain) the sum of the logits.
template <bool kPlain>
struct Running {
  Best best{-FLT_MAX, 0x7fffffff};
  float sum = 0, plain = 0;

  // `first`: the pack's first column; kLast: those from `vocab` on have no meaning.
  template <bool kLast, typename T, int N>
  __device__ void take(const Pack<T, N>& pack, int first, int vocab) {
    const auto there = [&](int i) { return !kLast || first + i < vocab; };
    float v[N], most = -FLT_MAX;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      v[i] = there(i) ? widen(pack.v[i]) : -FLT_MAX;
      most = fmaxf(most, v[i]);
    }
    if (most > best.value) {
      sum *= fast_exp2((best.value - most) * kLog2E);
      int at = 0;
#pragma unroll
      for (int i = N - 1; i >= 0; --i) {
        if (v[i] == most) at = i;
      }
      best = {most, first + at};
    }
    const float offset = best.value * kLog2E;
    float some = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      some += fast_exp2(v[i] * kLog2E - offset);
      if (kPlain && there(i)) plain += v[i];
    }
    sum += some;
  }
};

struct Shared {
  float sums[33];
  Best bests[32], best;
};

// From the threads' parts to the row's: its loss goes out, the logarithm of its sum of exponentials comes back.
// `at_target`: the target's logit, in thread 0.
template <bool kPlain>
__device__ float finish_row(const Running<kPlain>& of, float at_target, std::int32_t target,
                            const CrossEntropyRule& rule, Shared& shared, RowLoss* loss) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Best of_warp = warp_best(of.best);
  if (lane == 0) shared.bests[warp] = of_warp;
  __syncthreads();
  if (warp == 0) {
    const Best all = warp_best(shared.bests[lane]);
    if (lane == 0) shared.best = all;
  }
  __syncthreads();
  const Best top = shared.best;
  const float sum = block_sum(of.sum * fast_exp2((of.best.value - top.value) * kLog2E), shared.sums);
  const float lse = top.value + logf(sum);
  float plain = 0;
  if (kPlain) {
    __syncthreads();
    plain = block_sum(of.plain, shared.sums);
  }
  if (threadIdx.x == 0) {
    float value = (1 - rule.smoothing) * (lse - at_target);
    if (kPlain) value += rule.smoothing * (lse - plain / static_cast<float>(rule.vocab));
    *loss = {value + rule.z_loss * lse * lse, 1, top.index == target ? 1.0f : 0.0f};
  }
  return lse;
}

// The gradient of a row's logits: mass · softmax - uniform, and less by `hit` at the target.
struct Gradient {
  float offset, mass, uniform, hit;
  int target, vocab;
  __device__ Gradient(const CrossEntropyRule& rule, float factor, float lse, std::int32_t row_target)
      : offset(lse * kLog2E),
        mass(factor * (1 + 2 * rule.z_loss * lse)),
        uniform(factor * rule.smoothing / static_cast<float>(rule.vocab)),
        hit(factor * (1 - rule.smoothing)),
        target(row_target),
        vocab(static_cast<int>(rule.vocab)) {}

  // kPlace: the pack may hold the target or columns from the vocabulary's end on; most do not.
  template <bool kPlace, typename T, int N>
  __device__ Pack<T, N> of(const Pack<T, N>& pack, int first) const {
    Pack<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float gradient = fast_exp2(widen(pack.v[i]) * kLog2E - offset) * mass - uniform;
      if (kPlace && first + i == target) gradient -= hit;
      if (kPlace && first + i >= vocab) gradient = 0;
      result.v[i] = narrow<T>(gradient);
    }
    return result;
  }
};

// One row a block, read twice where gradients are wanted.
template <bool kPlain, typename T, int N>
__global__ void __launch_bounds__(kBlock) rows_kernel(T* logits, const std::int32_t* targets, const float* scale,
                                                      const CrossEntropyRule rule, RowLoss* losses) {
  __shared__ Shared shared;
  const std::int64_t row = blockIdx.x;
  T* x = logits + row * rule.stride;
  const std::int32_t target = targets[row];
  const auto vocab = static_cast<int>(rule.vocab), packs = static_cast<int>(ceil_div(rule.vocab, N));
  const auto begin = static_cast<int>(threadIdx.x);
  if (target < 0) {
    if (threadIdx.x == 0) losses[row] = {0, 0, 0};
    if (rule.backward) {
      for (int p = begin; p < packs; p += kBlock) store_pack(x + p * N, Pack<T, N>{});
    }
    return;
  }
  const float at_target = threadIdx.x == 0 ? widen(x[target]) : 0.0f;
  Running<kPlain> running;
  const int whole = vocab / N;
  int p = begin;
#pragma unroll 4
  for (; p < whole; p += kBlock) running.template take<false>(load_pack<N>(x + p * N), p * N, vocab);
  if (p < packs) running.template take<true>(load_pack<N>(x + p * N), p * N, vocab);
  const float lse = finish_row(running, at_target, target, rule, shared, losses + row);
  if (!rule.backward) return;
  const Gradient gradient(rule, *scale, lse, target);
  const int special = target / N;
  p = begin;
#pragma unroll 4
  for (; p < whole; p += kBlock) {
    const auto pack = load_pack<N>(x + p * N);
    store_pack(x + p * N,
               p == special ? gradient.template of<true>(pack, p * N) : gradient.template of<false>(pack, p * N));
  }
  if (p < packs) store_pack(x + p * N, gradient.template of<true>(load_pack<N>(x + p * N), p * N));
}

}  // namespace

void cross_entropy_rows(DType dtype, const CrossEntropyRule& rule, std::int64_t rows, void* logits,
                        const std::int32_t* targets, const float* scale, RowLoss* losses, cudaStream_t stream) {
  if (rows == 0) return;
  with_type(dtype, [&]<typename T>() {
    constexpr int kWide = 16 / sizeof(T);
    auto* x = static_cast<T*>(logits);
    const auto launch = [&]<int N>() {
      const auto kernel = rule.smoothing > 0 ? rows_kernel<true, T, N> : rows_kernel<false, T, N>;
      kernel<<<static_cast<unsigned>(rows), kBlock, 0, stream>>>(x, targets, scale, rule, losses);
    };
    rule.stride % kWide == 0 ? launch.template operator()<kWide>() : launch.template operator()<1>();
  });
  check_launch("cross-entropy");
}

}  // namespace convoy::cuda
