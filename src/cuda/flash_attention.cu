#include "cuda/flash_attention.h"

#include <climits>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cuda/flash_common.cuh"

namespace convoy::cuda {
namespace {

// One thread per row; a block of threads is a block of rows of the kernel that reads the hulls. The window is below the
// number of tokens.
struct RangeArguments {
  int tokens, keys, window;
  bool causal;
  bool by_key;  // the queries that see a key, not the keys that a query sees
  const std::int32_t *seq_start, *end_key;
  int2 *range, *hull;
};

// The end of the document of token t: the first token whose document starts later (starts never decrease).
__device__ int document_end(const std::int32_t* seq_start, int tokens, int t) {
  int low = t + 1, high = tokens;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (seq_start[middle] > t)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// The hull of the block's ranges; empty ones are (INT_MAX, 0).
__device__ void store_hull(int low, int high, int2* hull) {
  int2* partial = reinterpret_cast<int2*>(shared_bytes());
  low = __reduce_min_sync(0xffffffffu, low);
  high = __reduce_max_sync(0xffffffffu, high);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = make_int2(low, high);
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned w = 1; w < blockDim.x / 32; ++w) {
      low = min(low, partial[w].x);
      high = max(high, partial[w].y);
    }
    hull[blockIdx.x] = low <= high ? make_int2(low, high) : make_int2(0, 0);
  }
}

__global__ void ranges_kernel(const RangeArguments a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  int low = INT_MAX, high = 0;
  if (row < a.tokens) {
    const int t = static_cast<int>(row);
    // A start outside of [0, t] is a defect elsewhere; it must not become an access outside of the rows.
    low = a.by_key && a.causal ? t : min(max(a.seq_start[t], 0), t);
    high = a.causal && !a.by_key ? t + 1 : document_end(a.seq_start, a.tokens, t);
    if (a.window > 0) {
      low = max(low, t - a.window + 1);
      high = min(high, a.window > a.tokens - t ? a.tokens : t + a.window);
    }
    a.range[t] = make_int2(low, high);
  }
  store_hull(low, high, a.hull);
}

// Cross-attention: the keys that a query sees.
__global__ void given_ranges_kernel(const RangeArguments a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  int low = INT_MAX, high = 0;
  if (row < a.tokens) {
    // A range that leaves the keys is a defect elsewhere; it must not become an access outside of the rows.
    low = min(max(a.seq_start[row], 0), a.keys);
    high = min(max(a.end_key[row], low), a.keys);
    a.range[row] = make_int2(low, high);
  }
  store_hull(low, high, a.hull);
}

// Cross-attention: the first and the last of the queries that see a key.
__global__ void seers_kernel(const RangeArguments a, const int2* key_range) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  int low = INT_MAX, high = 0;
  if (row < a.keys) {
    const int key = static_cast<int>(row);
    for (int t = 0; t < a.tokens; ++t) {
      const int2 range = key_range[t];
      if (key < range.x || key >= range.y) continue;
      low = min(low, t);
      high = t + 1;
    }
    a.range[key] = low < high ? make_int2(low, high) : make_int2(0, 0);
  }
  store_hull(low, high, a.hull);
}

void find_ranges(cudaStream_t stream, const FlashShape& s, const FlashJob& job, bool by_key, int rows) {
  RangeArguments a{};
  a.tokens = job.tokens;
  a.keys = job.keys;
  a.window = s.window < s.tokens ? static_cast<int>(s.window) : 0;
  a.causal = s.causal;
  a.by_key = by_key;
  a.seq_start = job.first_key;
  a.end_key = job.end_key;
  a.range = by_key ? job.query_range : job.key_range;
  a.hull = by_key ? job.query_hull : job.key_hull;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid_of(by_key ? job.keys : job.tokens, rows));
  config.blockDim = dim3(static_cast<unsigned>(rows));
  config.dynamicSmemBytes = 32 * sizeof(int2);
  config.stream = stream;
  if (!job.cross)
    check_cuda(cudaLaunchKernelEx(&config, ranges_kernel, a), "attention: ranges");
  else if (by_key)
    check_cuda(cudaLaunchKernelEx(&config, seers_kernel, a, static_cast<const int2*>(job.key_range)),
               "attention: ranges");
  else
    check_cuda(cudaLaunchKernelEx(&config, given_ranges_kernel, a), "attention: ranges");
  check_launch("attention: ranges");
}

// delta = rowsum(dO o) and lse in powers of two: a warp per token and head.
constexpr int kDeltaThreads = 256;
template <class T>
__global__ void delta_kernel(const FlashJob job) {
  using Stored = typename T::Stored;
  const int lane = static_cast<int>(threadIdx.x % 32), head = static_cast<int>(blockIdx.y);
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * (kDeltaThreads / 32) + threadIdx.x / 32;
  if (t >= job.tokens) return;
  const std::int64_t at = t * job.o_row + static_cast<std::int64_t>(head) * job.head_dim;
  const Stored* o = static_cast<const Stored*>(job.o_in) + at;
  const Stored* d_o = static_cast<const Stored*>(job.d_o) + at;
  float sum = 0;
  for (int d = lane; d < job.head_dim; d += 32) sum += to_single<T>(o[d]) * to_single<T>(d_o[d]);
  sum = lanes_sum<32>(sum);
  if (lane == 0) {
    const std::int64_t i = static_cast<std::int64_t>(head) * job.tokens + t;
    job.delta[i] = sum;
    // A query that sees no key: exp(-inf - 0) instead of exp(-inf + inf).
    job.lse2[i] = job.lse[i] == -INFINITY ? 0.0f : job.lse[i] * kLog2e;
  }
}

template <class T>
void find_delta(cudaStream_t stream, const FlashJob& job) {
  launch<delta_kernel<T>>(stream, dim3(grid_of(job.tokens, kDeltaThreads / 32), static_cast<unsigned>(job.heads)),
                          kDeltaThreads, 0, job);
}

FlashTiles tiles_of(const FlashShape& s) {
  return s.dtype == DType::kF32 ? simt_tiles() : mma_tiles(s.head_dim);
}

void check_shape(const FlashShape& s) {
  check(s.dtype == DType::kF32 || s.dtype == DType::kBF16 || s.dtype == DType::kF16,
        "attention: not a type of the GPU's kernels");
  check(s.tokens >= 0 && s.tokens <= std::numeric_limits<std::int32_t>::max() - 1024,
        "attention: the number of tokens is out of range");
  check(s.keys >= 0 && s.keys <= std::numeric_limits<std::int32_t>::max() - 1024,
        "attention: the number of keys is out of range");
  check(s.heads > 0 && s.heads < 65536 && s.kv_heads > 0 && s.heads % s.kv_heads == 0,
        "attention: the heads must be a multiple of the key-value heads");
  check(s.head_dim > 0 && s.head_dim % 2 == 0 && s.head_dim <= kMaxHeadDim,
        "attention: the head size must be even and at most 256");
  check(s.dropout >= 0 && s.dropout < 1, "attention: dropout must be in [0, 1)");
  check(s.window >= 0, "attention: a window cannot be negative");
  check(s.scale >= 0 && std::isfinite(s.scale), "attention: the scale must be positive");
}

// Hands out the workspace; with a null base it counts only.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<unsigned char*>(base)) {}
  template <class E>
  E* take(std::int64_t count) {
    E* p = base_ ? reinterpret_cast<E*>(base_ + used_) : nullptr;
    used_ += (static_cast<std::size_t>(count) * sizeof(E) + 255) / 256 * 256;
    return p;
  }
  std::size_t used() const { return used_; }

 private:
  unsigned char* base_;
  std::size_t used_ = 0;
};

std::size_t carve(const FlashShape& s, bool backward, void* workspace, FlashJob& job) {
  const FlashTiles tiles = tiles_of(s);
  Carver space(workspace);
  job.key_range = space.take<int2>(s.tokens);
  job.key_hull = space.take<int2>(grid_of(s.tokens, backward ? tiles.dq_queries : tiles.forward_queries));
  if (backward) {
    const std::int64_t keys = s.keys > 0 ? s.keys : s.tokens;
    job.query_range = space.take<int2>(keys);
    job.query_hull = space.take<int2>(grid_of(keys, tiles.dkv_keys));
    job.lse2 = space.take<float>(s.heads * s.tokens);
    job.delta = space.take<float>(s.heads * s.tokens);
  }
  return space.used();
}

// All but the tensors, whose rows lie packed.
FlashJob make_job(const FlashShape& s, const std::int32_t* first_key, const std::int64_t* token_keys) {
  FlashJob job{};
  job.tokens = job.keys = static_cast<int>(s.tokens);
  job.heads = s.heads;
  job.kv_heads = s.kv_heads;
  job.group = s.heads / s.kv_heads;
  job.head_dim = s.head_dim;
  job.q_row = job.kv_row = static_cast<std::int64_t>(s.heads + 2 * s.kv_heads) * s.head_dim;
  job.o_row = static_cast<std::int64_t>(s.heads) * s.head_dim;
  const double scale = s.scale > 0 ? static_cast<double>(s.scale) : 1 / std::sqrt(static_cast<double>(s.head_dim));
  job.scale = static_cast<float>(scale);
  job.scale_log2 = static_cast<float>(scale * 1.44269504088896340736);
  // to_unit(bits) >= p in integers, as on the CPU.
  job.drop_below = static_cast<std::uint32_t>(std::ceil(std::ldexp(static_cast<double>(s.dropout), 24)));
  job.keep_scale = static_cast<float>(1 / (1 - static_cast<double>(s.dropout)));
  job.use_word = s.use * 65536u;
  job.seed[0] = static_cast<std::uint32_t>(s.seed);
  job.seed[1] = static_cast<std::uint32_t>(s.seed >> 32);
  job.first_key = first_key;
  job.token_keys = token_keys;
  check(s.dropout == 0 || token_keys != nullptr, "attention: dropout needs the tokens' keys");
  return job;
}

FlashJob make_cross_job(const FlashShape& s, const std::int32_t* begin, const std::int32_t* end,
                        const std::int64_t* token_keys) {
  FlashJob job = make_job(s, begin, token_keys);
  job.cross = true;
  job.keys = static_cast<int>(s.keys);
  job.q_row = job.o_row;
  job.kv_row = static_cast<std::int64_t>(2 * s.kv_heads) * s.head_dim;
  job.end_key = end;
  return job;
}

const void* after(const void* base, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(base) + elements * static_cast<std::int64_t>(size_of(dtype));
}
void* after(void* base, std::int64_t elements, DType dtype) {
  return static_cast<std::byte*>(base) + elements * static_cast<std::int64_t>(size_of(dtype));
}

void run_forward(cudaStream_t stream, const FlashShape& shape, FlashJob& job, void* workspace) {
  carve(shape, false, workspace, job);
  job.wide = shape.head_dim % 8 == 0 && aligned16(job.q) && aligned16(job.k) && aligned16(job.v);
  find_ranges(stream, shape, job, false, tiles_of(shape).forward_queries);
  if (shape.dtype == DType::kF32)
    simt_forward(stream, job);
  else if (shape.dtype == DType::kF16)
    mma_forward<Half>(stream, job);
  else
    mma_forward<Bfloat>(stream, job);
}

void run_backward(cudaStream_t stream, const FlashShape& shape, FlashJob& job, void* workspace) {
  carve(shape, true, workspace, job);
  job.wide =
      shape.head_dim % 8 == 0 && aligned16(job.q) && aligned16(job.k) && aligned16(job.v) && aligned16(job.d_o);
  const FlashTiles tiles = tiles_of(shape);
  find_ranges(stream, shape, job, false, tiles.dq_queries);
  find_ranges(stream, shape, job, true, tiles.dkv_keys);
  if (shape.dtype == DType::kF32) {
    find_delta<Single>(stream, job);
    simt_backward(stream, job);
  } else if (shape.dtype == DType::kF16) {
    find_delta<Half>(stream, job);
    mma_backward_keys<Half>(stream, job);
    mma_backward_queries<Half>(stream, job);
  } else {
    find_delta<Bfloat>(stream, job);
    mma_backward_keys<Bfloat>(stream, job);
    mma_backward_queries<Bfloat>(stream, job);
  }
}

}  // namespace

std::size_t flash_workspace(const FlashShape& shape, bool backward) {
  check_shape(shape);
  FlashJob job{};
  return carve(shape, backward, nullptr, job);
}

void flash_forward(cudaStream_t stream, const FlashShape& shape, const void* qkv, const std::int32_t* seq_start,
                   const std::int64_t* token_keys, void* o, float* lse, void* workspace) {
  check_shape(shape);
  if (shape.tokens == 0) return;
  FlashJob job = make_job(shape, seq_start, token_keys);
  job.q = qkv;
  job.k = after(qkv, job.o_row, shape.dtype);
  job.v = after(job.k, static_cast<std::int64_t>(shape.kv_heads) * shape.head_dim, shape.dtype);
  job.o = o;
  job.lse = lse;
  run_forward(stream, shape, job, workspace);
}

void flash_backward(cudaStream_t stream, const FlashShape& shape, const void* d_o, const void* qkv, const void* o,
                    const float* lse, const std::int32_t* seq_start, const std::int64_t* token_keys, void* dqkv,
                    void* workspace) {
  check_shape(shape);
  if (shape.tokens == 0) return;
  FlashJob job = make_job(shape, seq_start, token_keys);
  const std::int64_t width = static_cast<std::int64_t>(shape.kv_heads) * shape.head_dim;
  job.q = qkv;
  job.k = after(qkv, job.o_row, shape.dtype);
  job.v = after(job.k, width, shape.dtype);
  job.o_in = o;
  job.d_o = d_o;
  job.lse = const_cast<float*>(lse);  // only read
  job.dq = dqkv;
  job.dk = after(dqkv, job.o_row, shape.dtype);
  job.dv = after(job.dk, width, shape.dtype);
  run_backward(stream, shape, job, workspace);
}

void flash_cross_forward(cudaStream_t stream, const FlashShape& shape, const void* q, const void* kv,
                         const std::int32_t* key_begin, const std::int32_t* key_end, const std::int64_t* token_keys,
                         void* o, float* lse, void* workspace) {
  check_shape(shape);
  check(shape.keys > 0, "cross-attention without keys");
  if (shape.tokens == 0) return;
  FlashJob job = make_cross_job(shape, key_begin, key_end, token_keys);
  job.q = q;
  job.k = kv;
  job.v = after(kv, static_cast<std::int64_t>(shape.kv_heads) * shape.head_dim, shape.dtype);
  job.o = o;
  job.lse = lse;
  run_forward(stream, shape, job, workspace);
}

void flash_cross_backward(cudaStream_t stream, const FlashShape& shape, const void* d_o, const void* q, const void* kv,
                          const void* o, const float* lse, const std::int32_t* key_begin, const std::int32_t* key_end,
                          const std::int64_t* token_keys, void* dq, void* dkv, void* workspace) {
  check_shape(shape);
  check(shape.keys > 0, "cross-attention without keys");
  const std::int64_t width = static_cast<std::int64_t>(shape.kv_heads) * shape.head_dim;
  if (shape.tokens == 0) {
    check_cuda(cudaMemsetAsync(dkv, 0, static_cast<std::size_t>(shape.keys * 2 * width) * size_of(shape.dtype), stream),
               "cross-attention without queries");
    return;
  }
  FlashJob job = make_cross_job(shape, key_begin, key_end, token_keys);
  job.q = q;
  job.k = kv;
  job.v = after(kv, width, shape.dtype);
  job.o_in = o;
  job.d_o = d_o;
  job.lse = const_cast<float*>(lse);  // only read
  job.dq = dq;
  job.dk = dkv;
  job.dv = after(dkv, width, shape.dtype);
  run_backward(stream, shape, job, workspace);
}

}  // namespace convoy::cuda
