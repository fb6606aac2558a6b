// The language-model head with its loss: logits of as many rows as the workspace takes, turned into their gradients
// where they lie.
#include <cfloat>

#include "cuda/matmul.h"
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/linear_cross_entropy.h"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 1024;
constexpr std::size_t kLogitBytes = std::size_t{5} << 29;  // 2.5 GiB of logits at once, unless the user says

struct Loss {
  float value;
  float target;   // 1 for a row that has one
  float correct;  // 1 if its target is the most likely token
};

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

struct RowRule {
  std::int64_t vocab;
  float smoothing, z_loss;
  bool backward;
};

// One row a block. With `backward`, the logits become scale · d(loss)/d(logits).
template <typename T, int N>
__global__ void __launch_bounds__(kBlock)
    loss_kernel(T* logits, const std::int32_t* targets, const float* scale, RowRule rule, Loss* losses) {
  __shared__ float shared[33];
  __shared__ Best bests[32];
  __shared__ Best best_shared;
  const std::int64_t row = blockIdx.x;
  T* x = logits + row * rule.vocab;
  const std::int32_t target = targets[row];
  const std::int64_t packs = rule.vocab / N;
  if (target < 0) {
    if (threadIdx.x == 0) losses[row] = {0, 0, 0};
    if (rule.backward) {
      for (std::int64_t p = threadIdx.x; p < packs; p += kBlock) store_pack(x + p * N, Pack<T, N>{});
    }
    return;
  }
  // One pass: the running maximum and the sum of exponentials under it.
  Best best{-FLT_MAX, 0x7fffffff};
  float sum = 0, plain = 0;
  for (std::int64_t p = threadIdx.x; p < packs; p += kBlock) {
    const auto pack = load_pack<N>(x + p * N);
    float most = widen(pack.v[0]);
    int at = 0;
#pragma unroll
    for (int i = 1; i < N; ++i) {
      const float v = widen(pack.v[i]);
      if (v > most) {
        most = v;
        at = i;
      }
    }
    if (most > best.value) {
      sum *= __expf(best.value - most);
      best = {most, static_cast<std::int32_t>(p * N + at)};
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum += __expf(widen(pack.v[i]) - best.value);
      plain += widen(pack.v[i]);
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Best of_warp = warp_best(best);
  if (lane == 0) bests[warp] = of_warp;
  __syncthreads();
  if (warp == 0) {
    const Best all = warp_best(bests[lane]);
    if (lane == 0) best_shared = all;
  }
  __syncthreads();
  const Best top = best_shared;
  sum = block_sum(sum * __expf(best.value - top.value), shared);
  const float lse = top.value + logf(sum);
  if (rule.smoothing > 0) {
    __syncthreads();
    plain = block_sum(plain, shared);
  }
  const float at_target = widen(x[target]);
  if (threadIdx.x == 0) {
    float loss = (1 - rule.smoothing) * (lse - at_target);
    if (rule.smoothing > 0) loss += rule.smoothing * (lse - plain / static_cast<float>(rule.vocab));
    losses[row] = {loss + rule.z_loss * lse * lse, 1, top.index == target ? 1.0f : 0.0f};
  }
  if (!rule.backward) return;
  __syncthreads();  // every thread has read the target's logit
  const float factor = *scale;
  const float mass = factor * (1 + 2 * rule.z_loss * lse);
  const float uniform = factor * rule.smoothing / static_cast<float>(rule.vocab);
  const float hit = factor * (1 - rule.smoothing);
  for (std::int64_t p = threadIdx.x; p < packs; p += kBlock) {
    auto pack = load_pack<N>(x + p * N);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float gradient = __expf(widen(pack.v[i]) - lse) * mass - uniform;
      if (p * N + i == target) gradient -= hit;
      pack.v[i] = narrow<T>(gradient);
    }
    store_pack(x + p * N, pack);
  }
}

__global__ void __launch_bounds__(kBlock)
    statistics_kernel(const Loss* losses, std::int64_t tokens, float* statistics) {
  __shared__ double shared[3][kBlock];
  double sums[3] = {};
  for (std::int64_t t = threadIdx.x; t < tokens; t += kBlock) {
    sums[0] += losses[t].value;
    sums[1] += losses[t].target;
    sums[2] += losses[t].correct;
  }
  for (int i = 0; i < 3; ++i) shared[i][threadIdx.x] = sums[i];
  for (int half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) {
      for (int i = 0; i < 3; ++i) shared[i][threadIdx.x] += shared[i][threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    statistics[kLossSum] = static_cast<float>(shared[0][0]);
    statistics[kTargetCount] = static_cast<float>(shared[1][0]);
    statistics[kCorrectCount] = static_cast<float>(shared[2][0]);
    statistics[3] = 0;
  }
}

// The products of a chunk of rows; the last chunk may be shorter.
struct ChunkProducts {
  ChunkProducts(Context& c, DType dtype, std::int64_t rows, std::int64_t dim, std::int64_t vocab, bool with_dx,
                bool with_dweight, bool accumulate) {
    logits = std::make_shared<Matmul>(c, MatmulSpec{dtype, dtype, rows, vocab, dim, false, true, false, false});
    if (with_dx)
      dx = std::make_shared<Matmul>(c, MatmulSpec{dtype, dtype, rows, dim, vocab, false, false, false, false});
    if (with_dweight) {
      dweight =
          std::make_shared<Matmul>(c, MatmulSpec{dtype, DType::kF32, vocab, dim, rows, true, false, accumulate, false});
    }
  }
  std::shared_ptr<Matmul> logits, dx, dweight;
};

struct Head {
  Head(Context& context, const CrossEntropyShape& shape, const KernelRequest& q, bool with_dx, bool with_dweight)
      : c(&context),
        dtype(q.inputs[0]->dtype),
        tokens(q.inputs[0]->shape[0]),
        dim(q.inputs[0]->shape[1]),
        rule{q.inputs[1]->shape[0], static_cast<float>(shape.label_smoothing), static_cast<float>(shape.z_loss),
             with_dx || with_dweight},
        accumulate(with_dweight && q.has(4)) {
    std::int64_t most = shape.chunk_rows;
    if (most == 0) {
      most = std::max<std::int64_t>(
          128, static_cast<std::int64_t>(kLogitBytes / (static_cast<std::size_t>(rule.vocab) * size_of(dtype))));
      most = ceil_div(tokens, std::max<std::int64_t>(1, ceil_div(tokens, most)));  // chunks of one size
      most = ceil_div(most, 128) * 128;
    }
    chunk = std::max<std::int64_t>(1, std::min(most, tokens));
    const std::int64_t rest = tokens % chunk;
    if (tokens >= chunk) {
      first.emplace(context, dtype, chunk, dim, rule.vocab, with_dx, with_dweight, accumulate);
      if (with_dweight) later.emplace(context, dtype, chunk, dim, rule.vocab, with_dx, with_dweight, true);
    }
    if (rest > 0) {
      last.emplace(context, dtype, rest, dim, rule.vocab, with_dx, with_dweight, accumulate || tokens > chunk);
    }
  }

  std::size_t logit_bytes() const {
    return (static_cast<std::size_t>(chunk * rule.vocab) * size_of(dtype) + 255) / 256 * 256;
  }
  std::size_t loss_bytes() const { return (static_cast<std::size_t>(tokens) * sizeof(Loss) + 255) / 256 * 256; }
  std::size_t workspace_bytes() const { return kMatmulWorkspace + logit_bytes() + loss_bytes(); }

  void run(const KernelArguments& a) const {
    std::byte* logits = a.workspace + kMatmulWorkspace;
    auto* losses = reinterpret_cast<Loss*>(logits + logit_bytes());
    const auto* targets = reinterpret_cast<const std::int32_t*>(a.inputs[2]);
    const auto row_bytes = dim * static_cast<std::int64_t>(size_of(dtype));
    for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
      const std::int64_t rows = std::min(chunk, tokens - begin);
      const ChunkProducts& products = rows < chunk ? *last : (begin == 0 || !later ? *first : *later);
      const std::byte* x = a.inputs[0] + begin * row_bytes;
      products.logits->run(x, a.inputs[1], nullptr, nullptr, logits, a.workspace);
      with_type(dtype, [&]<typename T>() {
        const auto launch = [&]<int N>() {
          loss_kernel<T, N><<<static_cast<unsigned>(rows), kBlock, 0, c->stream>>>(
              reinterpret_cast<T*>(logits), targets + begin,
              rule.backward ? reinterpret_cast<const float*>(a.inputs[3]) : nullptr, rule, losses + begin);
        };
        constexpr int kWide = 16 / sizeof(T);
        rule.vocab % kWide == 0 ? launch.template operator()<kWide>() : launch.template operator()<1>();
      });
      check_launch("cross-entropy");
      if (!rule.backward) continue;
      if (products.dx)
        products.dx->run(logits, a.inputs[1], nullptr, nullptr, a.outputs[1] + begin * row_bytes, a.workspace);
      if (products.dweight) products.dweight->run(logits, x, nullptr, a.outputs[2], a.outputs[2], a.workspace);
    }
    statistics_kernel<<<1, kBlock, 0, c->stream>>>(losses, tokens, reinterpret_cast<float*>(a.outputs[0]));
    check_launch("cross-entropy's sums");
  }

  Context* c;
  DType dtype;
  std::int64_t tokens, dim, chunk = 1;
  RowRule rule;
  bool accumulate;
  std::optional<ChunkProducts> first, later, last;
};

}  // namespace

void register_head(KernelRegistry& registry, Context& c) {
  registry.add<LinearCrossEntropy>(
      [&c](const LinearCrossEntropy& op, const KernelRequest& q) {
        return [head = Head(c, op.shape, q, false, false)](const KernelArguments& a) { head.run(a); };
      },
      [&c](const LinearCrossEntropy& op, const KernelRequest& q) {
        return Head(c, op.shape, q, false, false).workspace_bytes();
      });
  registry.add<LinearCrossEntropyGrad>(
      [&c](const LinearCrossEntropyGrad& op, const KernelRequest& q) {
        return [head = Head(c, op.shape, q, op.dx, op.dweight)](const KernelArguments& a) { head.run(a); };
      },
      [&c](const LinearCrossEntropyGrad& op, const KernelRequest& q) {
        return Head(c, op.shape, q, op.dx, op.dweight).workspace_bytes();
      });
}

}  // namespace convoy::cuda
