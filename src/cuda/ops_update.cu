// The optimizer.
#include "cuda/multi_tensor.cuh"
#include "cuda/numeric.cuh"
#include "cuda/philox.cuh"
#include "cuda/registry.h"
#include "graph/ops/update.h"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 256;

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
    const void* gradient;  // of float32, or where `narrow` of T
    float* master;
    M *first, *second;
    std::int64_t n;
    double weight_decay;
    // Where the random bits of base/random.h's RoundingBits come from.
    std::int64_t origin;  // the shard's first element
    std::uint32_t tensor;
    bool masked, narrow;
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
    if (of.narrow) {
      const auto own = load_pack<N>(static_cast<const T*>(of.gradient) + i);
#pragma unroll
      for (int j = 0; j < N; ++j) gradient.v[j] = widen(own.v[j]);
    } else {
      gradient = load_pack<N>(static_cast<const float*>(of.gradient) + i);
    }
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
void optimize(Context& c, const OptimizerStep& op, const std::vector<std::int64_t>& sizes,
              const std::vector<bool>& narrow_gradients, const KernelArguments& a) {
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
    one.gradient = in[1];
    one.narrow = narrow_gradients[t];
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
    const DType dtype = op.weight_decays.empty() ? DType::kF32 : q.inputs[2]->dtype;
    std::vector<std::int64_t> sizes;
    std::vector<bool> narrow;
    for (std::size_t w = 0; w < op.weight_decays.size(); ++w) {
      sizes.push_back(q.inputs[2 + w * group]->numel());
      narrow.push_back(q.inputs[3 + w * group]->dtype != DType::kF32);
    }
    return [&c, op, dtype, sizes = std::move(sizes), narrow = std::move(narrow)](const KernelArguments& a) {
      with_type(dtype, [&]<typename T>() {
        if (op.settings.moment_dtype == DType::kBF16) {
          optimize<T, bf16>(c, op, sizes, narrow, a);
        } else {
          optimize<T, float>(c, op, sizes, narrow, a);
        }
      });
    };
  });
}

}  // namespace

void register_update(KernelRegistry& registry, Context& c) {
  register_optimizer(registry, c);
}

}  // namespace convoy::cuda
