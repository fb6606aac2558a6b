// Gradients in fewer bits.
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/compress.h"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kSignThreads = 64;  // of a block of signs: one word each 64 elements, kSignBlock / 64 words

template <typename From, typename To>
__global__ void convert_kernel(const From* x, To* y, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i < n) y[i] = narrow<To>(widen(x[i]));
}

// Where the signs begin, after the scales.
std::int64_t first_word(std::int64_t n) {
  return sign_bytes(n) - (n + 63) / 64 * 8;
}

// A block of threads a block of signs.
__global__ void compress_kernel(const float* gradient, float* error, float* scales, std::uint64_t* words,
                                std::int64_t n) {
  __shared__ double shared[kSignThreads];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kSignBlock;
  const std::int64_t end = begin + kSignBlock < n ? begin + kSignBlock : n;
  double total = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kSignThreads) {
    error[i] += gradient[i];
    total += fabs(static_cast<double>(error[i]));
  }
  shared[threadIdx.x] = total;
  for (int half = kSignThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  __syncthreads();
  total = shared[0];
  const bool finite = isfinite(total);
  const float scale = finite ? static_cast<float>(total / static_cast<double>(end - begin)) : nanf("");
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  __syncthreads();
  if (!finite) {  // the step will be skipped on all ranks; what was lost before must not be spoilt
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kSignThreads) error[i] = 0;
    return;
  }
  const std::int64_t first = begin + threadIdx.x * 64;
  if (first >= end) return;
  std::uint64_t word = 0;
  for (std::int64_t i = first; i < end && i < first + 64; ++i) {
    const bool positive = error[i] >= 0;
    word |= static_cast<std::uint64_t>(positive) << (i - first);
    error[i] -= positive ? scale : -scale;
  }
  words[first / 64] = word;
}

__global__ void sign_sum_kernel(const std::byte* parts, int ranks, std::int64_t bytes, std::int64_t word_at,
                                std::int64_t n, float* sum) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= n) return;
  float total = 0;
  for (int r = 0; r < ranks; ++r) {
    const std::byte* part = parts + r * bytes;
    const float scale = reinterpret_cast<const float*>(part)[i / kSignBlock];
    const std::uint64_t word = reinterpret_cast<const std::uint64_t*>(part + word_at)[i / 64];
    total += (word >> (i % 64) & 1) != 0 ? scale : -scale;
  }
  sum[i] = total;
}

}  // namespace

void register_compress(KernelRegistry& registry, Context& c) {
  registry.add<Convert>([&c](const Convert& op, const KernelRequest& q) {
    return [&c, from = q.inputs[0]->dtype, to = op.to, n = q.outputs[0].numel()](const KernelArguments& a) {
      if (n == 0) return;
      with_type(from, [&]<typename From>() {
        with_type(to, [&]<typename To>() {
          convert_kernel<<<grid_of(n, kBlock), kBlock, 0, c.stream>>>(reinterpret_cast<const From*>(a.inputs[0]),
                                                                     reinterpret_cast<To*>(a.outputs[0]), n);
        });
      });
      check_launch("convert");
    };
  });
  registry.add<SignCompress>([&c](const SignCompress&, const KernelRequest& q) {
    return [&c, n = q.inputs[0]->numel()](const KernelArguments& a) {
      if (n == 0) return;
      compress_kernel<<<grid_of(n, static_cast<int>(kSignBlock)), kSignThreads, 0, c.stream>>>(
          reinterpret_cast<const float*>(a.inputs[0]), reinterpret_cast<float*>(a.outputs[1]),
          reinterpret_cast<float*>(a.outputs[0]), reinterpret_cast<std::uint64_t*>(a.outputs[0] + first_word(n)), n);
      check_launch("sign_compress");
    };
  });
  registry.add<SignSum>([&c](const SignSum& op, const KernelRequest& q) {
    return [&c, n = q.outputs[0].numel(), ranks = op.ranks](const KernelArguments& a) {
      if (n == 0) return;
      sign_sum_kernel<<<grid_of(n, kBlock), kBlock, 0, c.stream>>>(a.inputs[0], ranks, sign_bytes(n), first_word(n), n,
                                                                  reinterpret_cast<float*>(a.outputs[0]));
      check_launch("sign_sum");
    };
  });
}

}  // namespace convoy::cuda
