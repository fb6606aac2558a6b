// Gradient norm, accumulation and the optimizer. Sums follow fixed trees, so that they have the same bits each time.
#include "cuda/numeric.cuh"
#include "cuda/philox.cuh"
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

// Many tensors in one launch: small ones would each take longer to start than to run. `begin` has the first block of
// each of them.
__device__ int tensor_of(const std::int32_t* begin, int count, int block) {
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

struct SquareJobs {
  static constexpr int kMost = 100;
  struct One {
    const float* x;
    std::int64_t numel, block;
    double* sums;
  };
  One one[kMost];
  std::int32_t begin[kMost + 1];
  int count;
};
static_assert(sizeof(SquareJobs) <= 3900);

// A block for each of the tensors' blocks of sums. A thread takes four elements that follow each other, then those
// 4 kBlock further on…, whether or not they can be loaded as one.
__global__ void square_sums_kernel(const __grid_constant__ SquareJobs jobs, double* not_finite) {
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
  if (reinterpret_cast<std::uintptr_t>(x + first) % 16 == 0) {
#pragma unroll 4
    for (; i + 4 <= last; i += 4 * kBlock) {
      const auto pack = load_pack<4>(x + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) add(pack.v[j]);
    }
  }
  for (; i < last; i += 4 * kBlock) {
    for (std::int64_t j = i; j < last && j < i + 4; ++j) add(x[j]);
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

template <int N>
__global__ void accumulate_kernel(const float* x, float* y, std::int64_t n) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x) * N;
  if (i >= n) return;
  if (i + N <= n) {
    const auto a = load_pack<N>(x + i);
    auto b = load_pack<N>(y + i);
#pragma unroll
    for (int j = 0; j < N; ++j) b.v[j] += a.v[j];
    store_pack(y + i, b);
  } else {
    for (std::int64_t j = i; j < n; ++j) y[j] += x[j];
  }
}

struct Rule {
  OptimizerKind kind;
  double beta1, beta2, eps, momentum, dampening, weight_decay;
  bool nesterov;
};

// The numbers of this step, the same for all elements.
struct StepNumbers {
  float learning_rate, beta1, beta2, eps, decay, l2, step, root, gradient_scale, mu, damp;
};

__device__ StepNumbers numbers_of(const Rule& rule, const double* scalars, const double* norm) {
  const double lr = scalars[kLearningRate], count = scalars[kStepNumber];
  const bool decoupled = rule.kind == OptimizerKind::kAdamW || rule.kind == OptimizerKind::kLion;
  StepNumbers s{};
  s.learning_rate = static_cast<float>(lr);
  s.beta1 = static_cast<float>(rule.beta1);
  s.beta2 = static_cast<float>(rule.beta2);
  s.eps = static_cast<float>(rule.eps);
  s.decay = static_cast<float>(decoupled ? 1 - lr * rule.weight_decay : 1);
  s.l2 = static_cast<float>(decoupled ? 0 : rule.weight_decay);
  s.step = static_cast<float>(lr / (1 - pow(rule.beta1, count)));
  s.root = static_cast<float>(1 / sqrt(1 - pow(rule.beta2, count)));
  s.gradient_scale = static_cast<float>(norm[kGradientFactor]);
  s.mu = static_cast<float>(rule.momentum);
  s.damp = static_cast<float>(count <= 1 ? 1 : 1 - rule.dampening);
  return s;
}

// √x and x / y to some 2^-22, in a few instructions: what they make is a small part of a weight.
__device__ inline float quick_root(float x) {
  float r;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ inline float quick_ratio(float x, float y) {
  return __fdividef(x, y);
}

// One element, in the order of operations of the CPU device. p, m, v are updated in place.
__device__ void update_one(const Rule& rule, const StepNumbers& s, float gradient, float& p, float& m, float& v) {
  switch (rule.kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam: {
      const float g = gradient * s.gradient_scale + s.l2 * p;
      m = s.beta1 * m + (1 - s.beta1) * g;
      v = s.beta2 * v + (1 - s.beta2) * g * g;
      p = p * s.decay - s.step * quick_ratio(m, quick_root(v) * s.root + s.eps);
      return;
    }
    case OptimizerKind::kSgd: {
      float g = gradient * s.gradient_scale + s.l2 * p;
      if (rule.momentum != 0) {
        m = s.mu * m + s.damp * g;
        g = rule.nesterov ? g + s.mu * m : m;
      }
      p -= s.learning_rate * g;
      return;
    }
    case OptimizerKind::kLion: {
      const float g = gradient * s.gradient_scale;
      const float u = s.beta1 * m + (1 - s.beta1) * g;
      const float sign = u > 0 ? 1.0f : (u < 0 ? -1.0f : 0.0f);
      p = p * s.decay - s.learning_rate * sign;
      m = s.beta2 * m + (1 - s.beta2) * g;
      return;
    }
    case OptimizerKind::kOpenAiAdam: {
      const float g = gradient * s.gradient_scale;
      m = s.beta1 * m + (1 - s.beta1) * g;
      v = s.beta2 * v + (1 - s.beta2) * g * g;
      p -= s.step / s.root * (quick_ratio(m, quick_root(v) + s.eps) + s.l2 * p);
      return;
    }
    case OptimizerKind::kAdagrad: {
      const float g = gradient * s.gradient_scale + s.l2 * p;
      m += g * g;
      p -= s.learning_rate * quick_ratio(g, quick_root(m) + s.eps);
      return;
    }
  }
}

// The tensors of one launch, and what differs between them. `master` is null where the weight itself is the master; m
// and v where the rule has none. M: type of the moments.
template <typename T, typename M>
struct Targets {
  static constexpr int kMost = 48;
  static constexpr std::int64_t kChunk =
      16384;  // elements of a block of threads: few, so that small models fill the card
  struct One {
    T* weight;
    const float* gradient;
    float* master;
    M *first, *second;
    std::int64_t n;
    double weight_decay;
    // Where the random bits of base/random.h's RoundingBits come from.
    std::int64_t origin;  // the shard's first element
    std::uint32_t tensor;
    bool masked;
  };
  One one[kMost];
  std::int32_t begin[kMost + 1];
  int count;
};
static_assert(sizeof(Targets<float, float>) + sizeof(Rule) <= 4000);
template <typename T>
__device__ T round_at_random(float x, std::uint32_t bits) {
  if constexpr (std::is_same_v<T, bf16>) {
    const std::uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return narrow<bf16>(x);
    return __ushort_as_bfloat16(static_cast<unsigned short>((u + bits) >> 16));
  } else {
    return narrow<T>(x);
  }
}

// A thread's pack of what the update reads.
template <typename T, typename M, int N>
struct UpdatePacks {
  Pack<float, N> gradient;
  Pack<T, N> weight;
  Pack<float, N> master;
  Pack<M, N> first, second;
  __device__ void load(const typename Targets<T, M>::One& of, std::int64_t i) {
    gradient = load_pack<N>(of.gradient + i);
    weight = load_pack<N>(of.weight + i);
    if (of.master != nullptr) master = load_pack<N>(of.master + i);
    if (of.first != nullptr) first = load_pack<N>(of.first + i);
    if (of.second != nullptr) second = load_pack<N>(of.second + i);
  }
  __device__ void store(const typename Targets<T, M>::One& of, std::int64_t i) const {
    store_pack(of.weight + i, weight);
    if (of.master != nullptr) store_pack(of.master + i, master);
    if (of.first != nullptr) store_pack(of.first + i, first);
    if (of.second != nullptr) store_pack(of.second + i, second);
  }
};

template <typename T, typename M, int N>
__global__ void optimizer_kernel(const __grid_constant__ Targets<T, M> targets, Rule rule, std::uint32_t key0,
                                 std::uint32_t key1, const double* scalars, const double* norm) {
  if (norm[kNonFinite] != 0) return;
  const int t = tensor_of(targets.begin, targets.count, static_cast<int>(blockIdx.x));
  const typename Targets<T, M>::One of = targets.one[t];
  rule.weight_decay = of.weight_decay;
  __shared__ StepNumbers shared;
  if (threadIdx.x == 0) shared = numbers_of(rule, scalars, norm);
  __syncthreads();
  const StepNumbers s = shared;
  const auto step = static_cast<std::uint32_t>(scalars[kStepNumber]);
  const bool masters = of.master != nullptr;
  const bool rounds = std::is_same_v<M, bf16> || (std::is_same_v<T, bf16> && !masters);
  const auto random = [&](std::int64_t element) {
    const auto quad = static_cast<std::uint64_t>(element) / 4;
    return philox(make_uint4(static_cast<std::uint32_t>(quad), static_cast<std::uint32_t>(quad >> 32), of.tensor, step),
                  key0, key1);
  };
  constexpr std::int64_t kPacks = Targets<T, M>::kChunk / N;
  const std::int64_t begin = (static_cast<int>(blockIdx.x) - targets.begin[t]) * kPacks;
  const std::int64_t end = begin + kPacks < ceil_div(of.n, N) ? begin + kPacks : ceil_div(of.n, N);
  const bool whole = of.origin % 4 == 0;  // a pack of four has one block of random numbers
  for (std::int64_t pack = begin + threadIdx.x; pack < end; pack += kBlock) {
    const std::int64_t i = pack * N;
    UpdatePacks<T, M, N> now{};
    now.load(of, i);
    const auto update = [&](int j, std::uint32_t own, std::uint32_t other) {
      if (of.masked && now.gradient.v[j] == 0.0f) return;
      float p = masters ? now.master.v[j] : widen(now.weight.v[j]);
      float one = widen(now.first.v[j]), two = widen(now.second.v[j]);
      update_one(rule, s, now.gradient.v[j], p, one, two);
      now.first.v[j] = round_at_random<M>(one, own & 0xffffu);
      now.second.v[j] = round_at_random<M>(two, own >> 16);
      now.weight.v[j] = masters ? narrow<T>(p) : round_at_random<T>(p, (other * 0x9E3779B9u) >> 16);
      if (masters) now.master.v[j] = p;
    };
    uint4 block{};
    if (N == 4 && whole) {
      if (rounds) block = random(of.origin + i);
#pragma unroll
      for (int j = 0; j < N; ++j) update(j, philox_word(block, j), philox_word(block, (j + 1) % 4));
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const std::int64_t element = of.origin + i + j;
        if (rounds && (j == 0 || element % 4 == 0)) block = random(element);
        update(j, philox_word(block, static_cast<int>(element % 4)),
               philox_word(block, static_cast<int>((element + 1) % 4)));
      }
    }
    now.store(of, i);
  }
}

void register_sums(KernelRegistry& registry, Context& c) {
  registry.add<SquareSums>([&c](const SquareSums& op, const KernelRequest& q) {
    std::vector<std::int64_t> numels;
    for (std::size_t t = 0; t < op.parts.size(); ++t) numels.push_back(q.inputs[t]->numel());
    return [&c, numels = std::move(numels), parts = op.parts, all = op.blocks](const KernelArguments& a) {
      auto* sums = reinterpret_cast<double*>(a.outputs[0]);
      check_cuda(cudaMemsetAsync(sums, 0, static_cast<std::size_t>(all + 1) * sizeof(double), c.stream), "square sums");
      SquareJobs jobs;
      jobs.count = 0;
      jobs.begin[0] = 0;
      const auto flush = [&] {
        if (jobs.count == 0) return;
        square_sums_kernel<<<static_cast<unsigned>(jobs.begin[jobs.count]), kBlock, 0, c.stream>>>(jobs, sums + all);
        jobs.count = 0;
      };
      for (std::size_t t = 0; t < parts.size(); ++t) {
        if (numels[t] == 0) continue;
        if (jobs.count == SquareJobs::kMost) flush();
        jobs.one[jobs.count] = {reinterpret_cast<const float*>(a.inputs[t]), numels[t], parts[t].block,
                                sums + parts[t].first_block};
        jobs.begin[jobs.count + 1] =
            jobs.begin[jobs.count] + static_cast<std::int32_t>(ceil_div(numels[t], parts[t].block));
        ++jobs.count;
      }
      flush();
      check_launch("square sums");
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

// Launches the optimizer over the tensors that it is given, as many at once as fit.
template <typename T, typename M, int N>
class OptimizerLaunch {
 public:
  OptimizerLaunch(cudaStream_t stream, const OptimizerSettings& settings, const double* scalars, const double* norm)
      : stream_(stream), settings_(settings), scalars_(scalars), norm_(norm) {}
  void add(const typename Targets<T, M>::One& one) {
    if (targets_.count == Targets<T, M>::kMost) flush();
    targets_.one[targets_.count] = one;
    targets_.begin[targets_.count + 1] =
        targets_.begin[targets_.count] + static_cast<std::int32_t>(ceil_div(one.n, Targets<T, M>::kChunk));
    ++targets_.count;
  }
  void flush() {
    if (targets_.count == 0) return;
    const Rule rule{
        settings_.kind,    settings_.beta1, settings_.beta2, settings_.eps, settings_.momentum, settings_.dampening, 0,
        settings_.nesterov};
    optimizer_kernel<T, M, N><<<static_cast<unsigned>(targets_.begin[targets_.count]), kBlock, 0, stream_>>>(
        targets_, rule, static_cast<std::uint32_t>(settings_.seed), static_cast<std::uint32_t>(settings_.seed >> 32),
        scalars_, norm_);
    check_launch("the optimizer");
    targets_.count = 0;
  }

 private:
  cudaStream_t stream_;
  const OptimizerSettings& settings_;
  const double *scalars_, *norm_;
  Targets<T, M> targets_{};
};

template <typename T, typename M>
void optimize(Context& c, const OptimizerStep& op, const std::vector<std::int64_t>& sizes, const KernelArguments& a) {
  const OptimizerSettings& set = op.settings;
  const auto group = static_cast<std::size_t>(op.inputs_per_weight());
  const auto* scalars = reinterpret_cast<const double*>(a.inputs[0]);
  const auto* norm = reinterpret_cast<const double*>(a.inputs[1]);
  OptimizerLaunch<T, M, 4> wide(c.stream, set, scalars, norm);
  OptimizerLaunch<T, M, 1> narrow(c.stream, set, scalars, norm);
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    if (sizes[t] == 0) continue;
    std::byte* const* in = a.inputs.data() + 2 + t * group;
    const std::size_t moments = op.master ? 3 : 2;
    typename Targets<T, M>::One one{};
    one.weight = reinterpret_cast<T*>(in[0]);
    one.gradient = reinterpret_cast<const float*>(in[1]);
    one.master = op.master ? reinterpret_cast<float*>(in[2]) : nullptr;
    one.first = set.moments() > 0 ? reinterpret_cast<M*>(in[moments]) : nullptr;
    one.second = set.moments() > 1 ? reinterpret_cast<M*>(in[moments + 1]) : nullptr;
    one.n = sizes[t];
    one.weight_decay = static_cast<double>(op.weight_decays[t]);
    one.origin = op.origins[t].first;
    one.tensor = op.origins[t].tensor;
    one.masked = op.masked[t];
    bool whole = sizes[t] % 4 == 0;
    for (std::size_t i = 0; i < group; ++i) whole = whole && aligned16(in[i]);
    whole ? wide.add(one) : narrow.add(one);
  }
  wide.flush();
  narrow.flush();
}

void register_optimizer(KernelRegistry& registry, Context& c) {
  registry.add<OptimizerStep>([&c](const OptimizerStep& op, const KernelRequest& q) {
    const auto group = static_cast<std::size_t>(op.inputs_per_weight());
    std::vector<std::int64_t> sizes;
    for (std::size_t w = 0; w < op.weight_decays.size(); ++w) sizes.push_back(q.inputs[2 + w * group]->numel());
    const DType dtype = op.weight_decays.empty() ? DType::kF32 : q.inputs[2]->dtype;
    return [&c, op, dtype, sizes = std::move(sizes)](const KernelArguments& a) {
      with_type(dtype, [&]<typename T>() {
        if (op.settings.moment_dtype == DType::kBF16) {
          optimize<T, bf16>(c, op, sizes, a);
        } else {
          optimize<T, float>(c, op, sizes, a);
        }
      });
    };
  });
}

}  // namespace

void register_update(KernelRegistry& registry, Context& c) {
  register_sums(registry, c);
  registry.add<AccumulateGradients>([&c](const AccumulateGradients&, const KernelRequest& q) {
    return [&c, n = q.outputs[0].numel()](const KernelArguments& a) {
      if (n == 0) return;
      const auto* x = reinterpret_cast<const float*>(a.inputs[0]);
      auto* y = reinterpret_cast<float*>(a.outputs[0]);
      if (aligned16(x) && aligned16(y)) {
        accumulate_kernel<4><<<grid_of(ceil_div(n, 4), kBlock), kBlock, 0, c.stream>>>(x, y, n);
      } else {
        accumulate_kernel<1><<<grid_of(n, kBlock), kBlock, 0, c.stream>>>(x, y, n);
      }
      check_launch("the sum of gradients");
    };
  });
  register_optimizer(registry, c);
}

}  // namespace convoy::cuda
