// Sums of gradients: over micro-batches, and of their squares for the norm. They follow fixed trees, so that they have
// the same bits each time.
#include <set>
#include <vector>

#include "cuda/multi_tensor.cuh"
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/update.h"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 256;

// The sum over a block's threads in float64 by a fixed tree, in thread 0.
__device__ double block_tree(double x, double* shared) {
  shared[threadIdx.x] = x;
  for (int half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  __syncthreads();
  return shared[0];
}

// The tensors of one launch, of type T.
template <typename T>
struct SquareJobs {
  static constexpr int kMost = 100;
  struct One {
    const T* x;
    std::int64_t numel, block;
    double* sums;
  };
  One one[kMost];
  std::int32_t begin[kMost + 1];
  int count;
};
static_assert(sizeof(SquareJobs<float>) <= 3900);

// A block for each of the tensors' blocks of sums. A thread takes four elements that follow each other, then those
// 4 kBlock further on…, whether or not they can be loaded as one.
template <typename T>
__global__ void square_sums_kernel(const __grid_constant__ SquareJobs<T> jobs, double* not_finite) {
  __shared__ double shared[kBlock];
  const int tensor = tensor_of(jobs.begin, jobs.count, static_cast<int>(blockIdx.x));
  const auto [x, numel, block, sums] = jobs.one[tensor];
  const std::int64_t at = static_cast<int>(blockIdx.x) - jobs.begin[tensor];
  const std::int64_t first = at * block;
  const std::int64_t last = first + block < numel ? first + block : numel;
  double sum = 0;
  int bad = 0;
  const auto add = [&](float one) {
    const double v = one;
    sum += v * v;
    if (!(fabsf(one) <= 3.4028234e38f)) ++bad;
  };
  std::int64_t i = first + 4 * threadIdx.x;
  if (reinterpret_cast<std::uintptr_t>(x + first) % (4 * sizeof(T)) == 0) {
#pragma unroll 4
    for (; i + 4 <= last; i += 4 * kBlock) {
      const auto pack = load_pack<4>(x + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) add(widen(pack.v[j]));
    }
  }
  for (; i < last; i += 4 * kBlock) {
    for (std::int64_t j = i; j < last && j < i + 4; ++j) add(widen(x[j]));
  }
  sum = block_tree(sum, shared);
  const bool any = __syncthreads_or(bad > 0) != 0;
  const double all_bad = any ? block_tree(bad, shared) : 0;
  if (threadIdx.x != 0) return;
  sums[at] = sum;
  if (any) atomicAdd(not_finite, all_bad);  // whole numbers: any order gives the same
}

// Turns values[0…count) into their sum by the fixed binary tree of the CPU device; in values[0].
__device__ void tree_sum(double* values, std::int64_t count) {
  for (std::int64_t stride = 1; stride < count; stride *= 2) {
    __syncthreads();
    for (std::int64_t i = 2 * stride * threadIdx.x; i + stride < count; i += 2 * stride * blockDim.x)
      values[i] += values[i + stride];
  }
  __syncthreads();
}

struct TensorBlocks {
  static constexpr int kMost = 1024;
  std::int32_t count[kMost];
};

// A block a tensor; `first` numbers the launch's first tensor.
__global__ void tensor_sums_kernel(double* sums, const __grid_constant__ TensorBlocks blocks, double* by_tensor) {
  std::int64_t begin = 0;
  for (unsigned t = 0; t < blockIdx.x; ++t) begin += blocks.count[t];
  tree_sum(sums + begin, blocks.count[blockIdx.x]);
  if (threadIdx.x == 0) by_tensor[blockIdx.x] = sums[begin];
}

__global__ void norm_kernel(double* by_tensor, std::int64_t tensors, const double* not_finite, const double* scalars,
                            double limit, double epsilon, double* result) {
  tree_sum(by_tensor, tensors);
  if (threadIdx.x != 0) return;
  const double unscale = scalars[kUnscale];
  const double norm = (tensors > 0 ? sqrt(by_tensor[0]) : 0.0) * unscale;
  result[kNorm] = norm;
  result[kNonFinite] = *not_finite > 0 || !isfinite(norm) ? 1 : 0;
  result[kGradientFactor] = unscale * (limit > 0 ? fmin(1.0, limit / (norm + epsilon)) : 1.0);
  result[3] = 0;
}

template <typename T, int N>
__global__ void accumulate_kernel(const T* x, T* y, std::int64_t n) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x) * N;
  if (i >= n) return;
  if (i + N <= n) {
    const auto a = load_pack<N>(x + i);
    auto b = load_pack<N>(y + i);
#pragma unroll
    for (int j = 0; j < N; ++j) b.v[j] = narrow<T>(widen(b.v[j]) + widen(a.v[j]));
    store_pack(y + i, b);
  } else {
    for (std::int64_t j = i; j < n; ++j) y[j] = narrow<T>(widen(y[j]) + widen(x[j]));
  }
}

// Of the tensors of type T among `parts`.
template <typename T>
void sum_squares(Context& c, const std::vector<SquareSums::Part>& parts, const std::vector<TensorSpec>& specs,
                 DType type, const KernelArguments& a, double* not_finite) {
  auto* sums = reinterpret_cast<double*>(a.outputs[0]);
  SquareJobs<T> jobs;
  jobs.count = 0;
  jobs.begin[0] = 0;
  const auto flush = [&] {
    if (jobs.count == 0) return;
    square_sums_kernel<<<static_cast<unsigned>(jobs.begin[jobs.count]), kBlock, 0, c.stream>>>(jobs, not_finite);
    jobs.count = 0;
  };
  for (std::size_t t = 0; t < parts.size(); ++t) {
    const std::int64_t numel = specs[t].numel();
    if (specs[t].dtype != type || numel == 0) continue;
    if (jobs.count == SquareJobs<T>::kMost) flush();
    jobs.one[jobs.count] = {reinterpret_cast<const T*>(a.inputs[t]), numel, parts[t].block,
                            sums + parts[t].first_block};
    jobs.begin[jobs.count + 1] = jobs.begin[jobs.count] + static_cast<std::int32_t>(ceil_div(numel, parts[t].block));
    ++jobs.count;
  }
  flush();
  check_launch("square sums");
}

void register_sums(KernelRegistry& registry, Context& c) {
  registry.add<SquareSums>([&c](const SquareSums& op, const KernelRequest& q) {
    std::vector<TensorSpec> specs;
    std::set<DType> types;
    for (std::size_t t = 0; t < op.parts.size(); ++t) {
      specs.push_back(*q.inputs[t]);
      types.insert(specs.back().dtype);
    }
    return [&c, specs = std::move(specs), types = std::move(types), parts = op.parts,
            all = op.blocks](const KernelArguments& a) {
      auto* sums = reinterpret_cast<double*>(a.outputs[0]);
      check_cuda(cudaMemsetAsync(sums, 0, static_cast<std::size_t>(all + 1) * sizeof(double), c.stream), "square sums");
      for (const DType type : types)
        with_type(type, [&]<typename T>() { sum_squares<T>(c, parts, specs, type, a, sums + all); });
    };
  });
  registry.add<NormOfSums>(
      [&c](const NormOfSums& op, const KernelRequest&) {
        return [&c, blocks = op.tensor_blocks, limit = op.max_norm, epsilon = op.epsilon](const KernelArguments& a) {
          // A copy: the sums stay as they are for who looks at them.
          auto* by_tensor = reinterpret_cast<double*>(a.workspace);
          double* copies = by_tensor + blocks.size();
          std::int64_t all = 0;
          for (const std::int64_t count : blocks) all += count;
          const auto* sums = reinterpret_cast<const double*>(a.inputs[0]);
          check_cuda(cudaMemcpyAsync(copies, sums, static_cast<std::size_t>(all) * sizeof(double),
                                     cudaMemcpyDeviceToDevice, c.stream),
                     "the norm");
          std::int64_t done = 0;
          for (std::size_t first = 0; first < blocks.size(); first += TensorBlocks::kMost) {
            TensorBlocks some{};
            const std::size_t count = std::min<std::size_t>(TensorBlocks::kMost, blocks.size() - first);
            std::int64_t taken = 0;
            for (std::size_t t = 0; t < count; ++t) {
              some.count[t] = static_cast<std::int32_t>(blocks[first + t]);
              taken += blocks[first + t];
            }
            tensor_sums_kernel<<<static_cast<unsigned>(count), kBlock, 0, c.stream>>>(copies + done, some,
                                                                                      by_tensor + first);
            done += taken;
          }
          norm_kernel<<<1, kBlock, 0, c.stream>>>(by_tensor, static_cast<std::int64_t>(blocks.size()), sums + all,
                                                  reinterpret_cast<const double*>(a.inputs[1]), limit, epsilon,
                                                  reinterpret_cast<double*>(a.outputs[0]));
          check_launch("the norm");
        };
      },
      [](const NormOfSums& op, const KernelRequest& q) {
        return (op.tensor_blocks.size() + static_cast<std::size_t>(q.inputs[0]->numel())) * sizeof(double);
      });
}

void register_accumulate(KernelRegistry& registry, Context& c) {
  registry.add<AccumulateGradients>([&c](const AccumulateGradients&, const KernelRequest& q) {
    return [&c, dtype = q.outputs[0].dtype, n = q.outputs[0].numel()](const KernelArguments& a) {
      if (n == 0) return;
      with_type(dtype, [&]<typename T>() {
        constexpr int kPack = static_cast<int>(16 / sizeof(T));
        const auto* x = reinterpret_cast<const T*>(a.inputs[0]);
        auto* y = reinterpret_cast<T*>(a.outputs[0]);
        if (aligned16(x) && aligned16(y)) {
          accumulate_kernel<T, kPack><<<grid_of(ceil_div(n, kPack), kBlock), kBlock, 0, c.stream>>>(x, y, n);
        } else {
          accumulate_kernel<T, 1><<<grid_of(n, kBlock), kBlock, 0, c.stream>>>(x, y, n);
        }
      });
      check_launch("the sum of gradients");
    };
  });
}

}  // namespace

void register_gradient_sums(KernelRegistry& registry, Context& c) {
  register_sums(registry, c);
  register_accumulate(registry, c);
}

}  // namespace convoy::cuda
