// Attention over kept keys and values, and keeping them. A text's keys are cut into a number of parts that depends on
// the shapes alone; a block works on one part for the query heads that share a key head, and a second kernel joins the
// parts in their order.
#include <algorithm>

#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/cached_attention.h"

namespace convoy::cuda {
namespace {

constexpr int kThreads = 256;  // of a block, and the keys that it scores at once
constexpr int kMostDim = 256;
constexpr std::int64_t kMostParts = 64;
constexpr float kLog2e = 1.44269504088896340736f;

struct CachedJob {
  int heads, kv_heads, dim, parts;
  std::int64_t rows, window;
  float scale;  // in powers of two
  const std::int32_t *begin, *end;
  float *partial, *top, *sum;  // [tokens, H, parts, D], [tokens, H, parts]: sums under the part's own maximum
};

// The rows that a token sees, inside the cache.
__device__ inline int2 seen(const CachedJob& job, std::int64_t token) {
  const auto rows = static_cast<int>(job.rows);
  int begin = min(max(job.begin[token], 0), rows);
  const int end = min(max(job.end[token], begin), rows);
  if (job.window > 0 && end - begin > job.window) begin = end - static_cast<int>(job.window);
  return make_int2(begin, end);
}

// Block (part, key head and kGroup of its query heads, token).
template <typename T, int N, int kGroup>
__global__ void __launch_bounds__(kThreads) part_kernel(const CachedJob job, const T* qkv, const T* keys,
                                                        const T* values) {
  __shared__ __align__(16) float q[kGroup][kMostDim];
  __shared__ float p[kGroup][kThreads];
  __shared__ float top[kGroup], total[kGroup], shrink[kGroup];
  __shared__ __align__(16) float joined[kThreads * N];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int group = job.heads / job.kv_heads, chunks = (group + kGroup - 1) / kGroup;
  const int kv = static_cast<int>(blockIdx.y) / chunks, first = static_cast<int>(blockIdx.y) % chunks * kGroup;
  const int count = min(kGroup, group - first), head = kv * group + first, part = static_cast<int>(blockIdx.x);
  const std::int64_t token = blockIdx.z;
  const int2 range = seen(job, token);
  const int length = ((range.y - range.x + job.parts - 1) / job.parts + 63) / 64 * 64;
  const int begin = min(range.x + part * length, range.y), end = min(begin + length, range.y);
  const std::int64_t width = static_cast<std::int64_t>(job.kv_heads) * job.dim;

  const T* from = qkv + token * (static_cast<std::int64_t>(job.heads + 2 * job.kv_heads) * job.dim) +
                  static_cast<std::int64_t>(head) * job.dim;
  for (int i = tid; i < kGroup * job.dim; i += kThreads) {
    const int g = i / job.dim, d = i % job.dim;
    q[g][d] = g < count ? widen(from[g * job.dim + d]) * job.scale : 0.0f;
  }
  if (tid < kGroup) {
    top[tid] = -INFINITY;
    total[tid] = 0;
  }
  // Of the values, a thread has N columns of every `rows`th key.
  const int per_row = job.dim / N, rows = kThreads / per_row, row = tid / per_row, column = tid % per_row * N;
  float o[kGroup][N] = {};
  for (int key = begin; key < end; key += kThreads) {
    const int there = min(kThreads, end - key);
    __syncthreads();  // q is there; nobody reads the last probabilities any more
    float score[kGroup] = {};
    if (tid < there) {
      const T* k = keys + (static_cast<std::int64_t>(key) + tid) * width + kv * job.dim;
      for (int d = 0; d < job.dim; d += N) {
        const auto pack = load_pack<N>(k + d);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float x = widen(pack.v[j]);
#pragma unroll
          for (int g = 0; g < kGroup; ++g) score[g] += x * q[g][d + j];
        }
      }
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) p[g][tid] = tid < there ? score[g] : -INFINITY;
    __syncthreads();
    for (int g = warp; g < count; g += kThreads / 32) {
      float best = top[g];
      for (int i = lane; i < kThreads; i += 32) best = fmaxf(best, p[g][i]);
      best = warp_max(best);
      float sum = 0;
      for (int i = lane; i < kThreads; i += 32) {
        const float e = exp2f(p[g][i] - best);
        p[g][i] = e;
        sum += e;
      }
      sum = warp_sum(sum);
      if (lane == 0) {
        shrink[g] = exp2f(top[g] - best);
        total[g] = total[g] * shrink[g] + sum;
        top[g] = best;
      }
    }
    __syncthreads();
    if (row >= rows) continue;
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      if (g >= count) break;
#pragma unroll
      for (int j = 0; j < N; ++j) o[g][j] *= shrink[g];
    }
    for (int i = row; i < there; i += rows) {
      const auto pack =
          load_pack<N>(values + (static_cast<std::int64_t>(key) + i) * width + kv * job.dim + column);
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        if (g >= count) break;
        const float weight = p[g][i];
#pragma unroll
        for (int j = 0; j < N; ++j) o[g][j] += weight * widen(pack.v[j]);
      }
    }
  }
  const std::int64_t at = (token * job.heads + head) * job.parts + part;
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    if (g >= count) break;
    __syncthreads();  // the maxima and sums are there; `joined` is free
    if (row < rows) {
#pragma unroll
      for (int j = 0; j < N; ++j) joined[row * job.dim + column + j] = o[g][j];
    }
    __syncthreads();
    const std::int64_t to = at + static_cast<std::int64_t>(g) * job.parts;
    for (int d = tid; d < job.dim; d += kThreads) {
      float sum = 0;
      for (int r = 0; r < rows; ++r) sum += joined[r * job.dim + d];
      job.partial[to * job.dim + d] = sum;
    }
    if (tid == 0) {
      job.top[to] = top[g];
      job.sum[to] = total[g];
    }
  }
}

// A block joins the parts of one token and head.
template <typename T>
__global__ void join_kernel(const CachedJob job, T* out) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * job.parts;
  float best = -INFINITY, total = 0;
  for (int i = 0; i < job.parts; ++i) best = fmaxf(best, job.top[at + i]);
  const bool any = best != -INFINITY;
  if (any) {
    for (int i = 0; i < job.parts; ++i) total += job.sum[at + i] * exp2f(job.top[at + i] - best);
  }
  for (int d = static_cast<int>(threadIdx.x); d < job.dim; d += static_cast<int>(blockDim.x)) {
    float sum = 0;
    if (any) {
      for (int i = 0; i < job.parts; ++i)
        sum += job.partial[(at + i) * job.dim + d] * exp2f(job.top[at + i] - best);
    }
    out[static_cast<std::int64_t>(blockIdx.x) * job.dim + d] = narrow<T>(any ? sum / total : 0.0f);
  }
}

template <typename T>
__global__ void keep_kernel(const T* qkv, const std::int32_t* row, T* keys, T* values, std::int64_t elements,
                            std::int64_t width, std::int64_t first, std::int64_t rows) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  const std::int64_t token = i / width, column = i - token * width, to = row[token];
  if (to < 0 || to >= rows) return;
  const T* from = qkv + token * (first + 2 * width) + first + column;
  keys[to * width + column] = from[0];
  values[to * width + column] = from[width];
}

// How many parts a text's keys are cut into: enough for all multiprocessors.
int parts_of(const Context& c, const AttentionShape& s, std::int64_t tokens, std::int64_t rows) {
  const std::int64_t blocks = std::max<std::int64_t>(1, tokens * s.kv_heads);
  const std::int64_t wanted = ceil_div(2 * c.properties.multiProcessorCount, blocks);
  return static_cast<int>(
      std::clamp<std::int64_t>(std::min(wanted, ceil_div(rows, kThreads)), 1, kMostParts));
}

void register_keep(KernelRegistry& registry, Context& c) {
  registry.add<KeepKeysValues>([&c](const KeepKeysValues& op, const KernelRequest& q) {
    const std::int64_t width = op.kv_heads * op.head_dim;
    return [&c, elements = q.inputs[0]->shape[0] * width, width, first = op.heads * op.head_dim,
            rows = q.inputs[2]->shape[0], dtype = q.inputs[0]->dtype](const KernelArguments& a) {
      if (elements == 0) return;
      with_type(dtype, [&]<typename T>() {
        keep_kernel<<<grid_of(elements, kThreads), kThreads, 0, c.stream>>>(
            reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const std::int32_t*>(a.inputs[1]),
            reinterpret_cast<T*>(a.outputs[0]), reinterpret_cast<T*>(a.outputs[1]), elements, width, first, rows);
      });
      check_launch("keep_keys_values");
    };
  });
}

}  // namespace

void register_cached_attention(KernelRegistry& registry, Context& c) {
  register_keep(registry, c);
  registry.add<CachedAttention>(
      [&c](const CachedAttention& op, const KernelRequest& q) {
        const AttentionShape& s = op.shape;
        check(s.head_dim <= kMostDim, "cached_attention: the head size must be at most 256");
        const std::int64_t tokens = q.inputs[0]->shape[0], rows = q.inputs[1]->shape[0];
        CachedJob job{};
        job.heads = static_cast<int>(s.heads);
        job.kv_heads = static_cast<int>(s.kv_heads);
        job.dim = static_cast<int>(s.head_dim);
        job.parts = parts_of(c, s, tokens, rows);
        job.rows = rows;
        job.window = s.window;
        job.scale = static_cast<float>(s.scale) * kLog2e;
        return [&c, job, tokens, dtype = q.inputs[0]->dtype](const KernelArguments& a) {
          if (tokens == 0) return;
          CachedJob now = job;
          now.begin = reinterpret_cast<const std::int32_t*>(a.inputs[3]);
          now.end = reinterpret_cast<const std::int32_t*>(a.inputs[4]);
          const std::int64_t parts = tokens * job.heads * job.parts;
          now.partial = reinterpret_cast<float*>(a.workspace);
          now.top = now.partial + parts * job.dim;
          now.sum = now.top + parts;
          const int group = job.heads / job.kv_heads;
          with_type(dtype, [&]<typename T>() {
            const auto run = [&]<int N, int kGroup>() {
              const dim3 grid(static_cast<unsigned>(job.parts),
                              static_cast<unsigned>(job.kv_heads) * grid_of(group, kGroup),
                              static_cast<unsigned>(tokens));
              part_kernel<T, N, kGroup><<<grid, kThreads, 0, c.stream>>>(
                  now, reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const T*>(a.inputs[1]),
                  reinterpret_cast<const T*>(a.inputs[2]));
            };
            const auto grouped = [&]<int N>() {
              group == 1 ? run.template operator()<N, 1>() : run.template operator()<N, 4>();
            };
            constexpr int kWide = 16 / sizeof(T);
            job.dim % kWide == 0 ? grouped.template operator()<kWide>() : grouped.template operator()<1>();
            join_kernel<<<static_cast<unsigned>(tokens * job.heads), 128, 0, c.stream>>>(
                now, reinterpret_cast<T*>(a.outputs[0]));
          });
          check_launch("cached_attention");
        };
      },
      [&c](const CachedAttention& op, const KernelRequest& q) {
        const std::int64_t tokens = q.inputs[0]->shape[0];
        const std::int64_t parts = tokens * op.shape.heads * parts_of(c, op.shape, tokens, q.inputs[1]->shape[0]);
        return static_cast<std::size_t>(parts * (op.shape.head_dim + 2)) * sizeof(float);
      });
}

}  // namespace convoy::cuda
