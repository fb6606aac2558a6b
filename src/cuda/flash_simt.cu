// f32 attention by plain fused multiply-adds: exact to f32, not built for speed. A block owns kRows rows of one head
// and walks over the other side in steps of kRows; a warp owns kPerWarp of its rows, a lane one row of the other side.
#include "cuda/flash_common.cuh"

namespace convoy::cuda {
namespace {

constexpr int kRows = 32, kThreads = 128, kPerWarp = kRows / (kThreads / 32);

// Rows of kColumns * 32 elements in shared memory. The pad keeps 16-byte reads of 8 rows on different banks.
template <int kColumns>
struct Rows {
  static constexpr int kDim = kColumns * 32, kStride = kDim + 4, kSize = kRows * kStride;
};

template <int kColumns>
__device__ void load_rows(const float* from, std::int64_t stride, int first, int end, int dim, float* to) {
  using R = Rows<kColumns>;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * R::kDim; i += kThreads) {
    const int r = i / R::kDim, d = i % R::kDim;
    to[r * R::kStride + d] = first + r < end && d < dim ? from[(first + r) * stride + d] : 0.0f;
  }
}

// s[r] = row r of `rows` · `other`
template <int kColumns>
__device__ __forceinline__ void dot_rows(const float* rows, const float* other, float (&s)[kPerWarp]) {
  using R = Rows<kColumns>;
#pragma unroll
  for (int r = 0; r < kPerWarp; ++r) s[r] = 0;
#pragma unroll 4
  for (int d = 0; d < R::kDim; d += 4) {
    const float4 b = *reinterpret_cast<const float4*>(other + d);
#pragma unroll
    for (int r = 0; r < kPerWarp; ++r) {
      const float4 a = *reinterpret_cast<const float4*>(rows + r * R::kStride + d);
      s[r] += a.x * b.x;
      s[r] += a.y * b.y;
      s[r] += a.z * b.z;
      s[r] += a.w * b.w;
    }
  }
}

// sum[r][c] += weight of lane j for row r · other[j][32 c + lane]
template <int kColumns>
__device__ __forceinline__ void add_weighted(const float (&weight)[kPerWarp], const float* other, int lane,
                                             float (&sum)[kPerWarp][kColumns]) {
  using R = Rows<kColumns>;
#pragma unroll 4
  for (int j = 0; j < kRows; ++j) {
    float x[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) x[c] = other[j * R::kStride + 32 * c + lane];
#pragma unroll
    for (int r = 0; r < kPerWarp; ++r) {
      const float w = __shfl_sync(0xffffffffu, weight[r], j);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sum[r][c] += w * x[c];
    }
  }
}

template <int kColumns>
__device__ __forceinline__ void store_rows(const float (&sum)[kPerWarp][kColumns], float factor, float* to,
                                           std::int64_t stride, int first, int end, int dim, int lane) {
#pragma unroll
  for (int r = 0; r < kPerWarp; ++r)
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (first + r < end && 32 * c + lane < dim) to[(first + r) * stride + 32 * c + lane] = sum[r][c] * factor;
}

__device__ __forceinline__ bool inside(int2 range, int i) {
  return i >= range.x && i < range.y;
}

// What a row sees; nothing behind the last row.
__device__ __forceinline__ int2 range_of(const int2* ranges, int row, int rows) {
  return row < rows ? ranges[row] : make_int2(0, 0);
}

__device__ __forceinline__ bool kept(const FlashJob& job, int head, int query, int key) {
  return job.drop_below == 0 || keep_bits<1>(job, head, query, key) % 2 != 0;
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ FlashJob job) {
  using R = Rows<kColumns>;
  float* q = reinterpret_cast<float*>(shared_bytes());
  float *k = q + R::kSize, *v = k + R::kSize;
  const int lane = static_cast<int>(threadIdx.x % 32), row = static_cast<int>(threadIdx.x / 32) * kPerWarp;
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int first = block * kRows, kv = head / job.group;
  const float* keys = static_cast<const float*>(job.k) + kv * job.head_dim;
  const float* values = static_cast<const float*>(job.v) + kv * job.head_dim;
  load_rows<kColumns>(static_cast<const float*>(job.q) + head * job.head_dim, job.q_row, first, job.tokens,
                      job.head_dim, q);
  float o[kPerWarp][kColumns] = {}, top[kPerWarp], sum[kPerWarp] = {};
#pragma unroll
  for (int r = 0; r < kPerWarp; ++r) top[r] = -INFINITY;
  const int2 hull = job.key_hull[block];
  for (int key = hull.x; key < hull.y; key += kRows) {
    __syncthreads();
    load_rows<kColumns>(keys, job.kv_row, key, job.keys, job.head_dim, k);
    load_rows<kColumns>(values, job.kv_row, key, job.keys, job.head_dim, v);
    __syncthreads();
    float s[kPerWarp];
    dot_rows<kColumns>(q + row * R::kStride, k + lane * R::kStride, s);
#pragma unroll
    for (int r = 0; r < kPerWarp; ++r) {
      const int query = first + row + r;
      if (!inside(range_of(job.key_range, query, job.tokens), key + lane)) s[r] = -INFINITY;
      const float best = fmaxf(top[r], lanes_max<32>(s[r]));
      const float offset = best == -INFINITY ? 0.0f : best * job.scale_log2;
      const float shrink = exp2f(top[r] * job.scale_log2 - offset);
      top[r] = best;
      s[r] = exp2f(s[r] * job.scale_log2 - offset);
      sum[r] = sum[r] * shrink + s[r];
      if (!kept(job, head, query, key + lane)) s[r] = 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) o[r][c] *= shrink;
    }
    add_weighted<kColumns>(s, v, lane, o);
  }
#pragma unroll
  for (int r = 0; r < kPerWarp; ++r) {
    const float total = lanes_sum<32>(sum[r]);
    const float factor = total > 0 ? job.keep_scale / total : 0.0f;  // a query may see no key
#pragma unroll
    for (int c = 0; c < kColumns; ++c) o[r][c] *= factor;
    const int query = first + row + r;
    if (lane == 0 && query < job.tokens)
      job.lse[static_cast<std::int64_t>(head) * job.tokens + query] = top[r] * job.scale + logf(total);
  }
  store_rows<kColumns>(o, 1.0f, static_cast<float*>(job.o) + head * job.head_dim, job.o_row, first + row, job.tokens,
                       job.head_dim, lane);
}

// From s = q·k and dp = dO·v: s becomes the kept probability (without the factor of dropout), dp the gradient of
// scale · s.
__device__ __forceinline__ void score_gradient(const FlashJob& job, bool seen, bool keep, float lse2, float delta,
                                               float& s, float& dp) {
  const float p = seen ? exp2f(s * job.scale_log2 - lse2) : 0.0f;
  s = keep ? p : 0.0f;
  dp = p * ((keep ? dp * job.keep_scale : 0.0f) - delta);
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads) queries_kernel(const __grid_constant__ FlashJob job) {
  using R = Rows<kColumns>;
  float* q = reinterpret_cast<float*>(shared_bytes());
  float *d_o = q + R::kSize, *k = d_o + R::kSize, *v = k + R::kSize;
  const int lane = static_cast<int>(threadIdx.x % 32), row = static_cast<int>(threadIdx.x / 32) * kPerWarp;
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int first = block * kRows, kv = head / job.group;
  const float* keys = static_cast<const float*>(job.k) + kv * job.head_dim;
  const float* values = static_cast<const float*>(job.v) + kv * job.head_dim;
  load_rows<kColumns>(static_cast<const float*>(job.q) + head * job.head_dim, job.q_row, first, job.tokens,
                      job.head_dim, q);
  load_rows<kColumns>(static_cast<const float*>(job.d_o) + head * job.head_dim, job.o_row, first, job.tokens,
                      job.head_dim, d_o);
  float dq[kPerWarp][kColumns] = {};
  const int2 hull = job.key_hull[block];
  for (int key = hull.x; key < hull.y; key += kRows) {
    __syncthreads();
    load_rows<kColumns>(keys, job.kv_row, key, job.keys, job.head_dim, k);
    load_rows<kColumns>(values, job.kv_row, key, job.keys, job.head_dim, v);
    __syncthreads();
    float s[kPerWarp], dp[kPerWarp];
    dot_rows<kColumns>(q + row * R::kStride, k + lane * R::kStride, s);
    dot_rows<kColumns>(d_o + row * R::kStride, v + lane * R::kStride, dp);
#pragma unroll
    for (int r = 0; r < kPerWarp; ++r) {
      const int query = first + row + r;
      const std::int64_t at = static_cast<std::int64_t>(head) * job.tokens + min(query, job.tokens - 1);
      score_gradient(job, inside(range_of(job.key_range, query, job.tokens), key + lane),
                     kept(job, head, query, key + lane), job.lse2[at], job.delta[at], s[r], dp[r]);
    }
    add_weighted<kColumns>(dp, k, lane, dq);
  }
  store_rows<kColumns>(dq, job.scale, static_cast<float*>(job.dq) + head * job.head_dim, job.q_row, first + row,
                       job.tokens, job.head_dim, lane);
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads) keys_kernel(const __grid_constant__ FlashJob job) {
  using R = Rows<kColumns>;
  float* k = reinterpret_cast<float*>(shared_bytes());
  float *v = k + R::kSize, *q = v + R::kSize, *d_o = q + R::kSize;
  const int lane = static_cast<int>(threadIdx.x % 32), row = static_cast<int>(threadIdx.x / 32) * kPerWarp;
  const int block = static_cast<int>(blockIdx.x), kv = static_cast<int>(blockIdx.y), first = block * kRows;
  const int column = kv * job.head_dim;
  load_rows<kColumns>(static_cast<const float*>(job.k) + column, job.kv_row, first, job.keys, job.head_dim, k);
  load_rows<kColumns>(static_cast<const float*>(job.v) + column, job.kv_row, first, job.keys, job.head_dim, v);
  float dk[kPerWarp][kColumns] = {}, dv[kPerWarp][kColumns] = {};
  const int2 hull = job.query_hull[block];
  for (int head = kv * job.group; head < (kv + 1) * job.group; ++head) {
    for (int query = hull.x; query < hull.y; query += kRows) {
      __syncthreads();
      load_rows<kColumns>(static_cast<const float*>(job.q) + head * job.head_dim, job.q_row, query, job.tokens,
                          job.head_dim, q);
      load_rows<kColumns>(static_cast<const float*>(job.d_o) + head * job.head_dim, job.o_row, query, job.tokens,
                          job.head_dim, d_o);
      __syncthreads();
      float s[kPerWarp], dp[kPerWarp];
      dot_rows<kColumns>(k + row * R::kStride, q + lane * R::kStride, s);
      dot_rows<kColumns>(v + row * R::kStride, d_o + lane * R::kStride, dp);
      const std::int64_t at = static_cast<std::int64_t>(head) * job.tokens + min(query + lane, job.tokens - 1);
      const float lse2 = job.lse2[at], delta = job.delta[at];
#pragma unroll
      for (int r = 0; r < kPerWarp; ++r) {
        const int key = first + row + r;
        const bool seen = job.cross ? inside(range_of(job.key_range, query + lane, job.tokens), key)
                                    : inside(range_of(job.query_range, key, job.keys), query + lane);
        score_gradient(job, seen,
                       kept(job, head, query + lane, key), lse2, delta, s[r], dp[r]);
      }
      add_weighted<kColumns>(s, d_o, lane, dv);
      add_weighted<kColumns>(dp, q, lane, dk);
    }
  }
  store_rows<kColumns>(dk, job.scale, static_cast<float*>(job.dk) + column, job.kv_row, first + row, job.keys,
                       job.head_dim, lane);
  store_rows<kColumns>(dv, job.keep_scale, static_cast<float*>(job.dv) + column, job.kv_row, first + row, job.keys,
                       job.head_dim, lane);
}

template <int kColumns>
void forward_of(cudaStream_t stream, const FlashJob& job) {
  launch<forward_kernel<kColumns>>(stream, dim3(grid_of(job.tokens, kRows), static_cast<unsigned>(job.heads)),
                                   kThreads, 3 * Rows<kColumns>::kSize * sizeof(float), job);
}

template <int kColumns>
void backward_of(cudaStream_t stream, const FlashJob& job) {
  constexpr std::size_t kShared = 4 * Rows<kColumns>::kSize * sizeof(float);
  launch<keys_kernel<kColumns>>(stream, dim3(grid_of(job.keys, kRows), static_cast<unsigned>(job.kv_heads)), kThreads,
                                kShared, job);
  launch<queries_kernel<kColumns>>(stream, dim3(grid_of(job.tokens, kRows), static_cast<unsigned>(job.heads)), kThreads,
                                   kShared, job);
}

}  // namespace

FlashTiles simt_tiles() {
  return {kRows, kRows, kRows};
}

void simt_forward(cudaStream_t stream, const FlashJob& job) {
  if (job.head_dim <= 32)
    forward_of<1>(stream, job);
  else if (job.head_dim <= 64)
    forward_of<2>(stream, job);
  else if (job.head_dim <= 128)
    forward_of<4>(stream, job);
  else
    forward_of<8>(stream, job);
}

void simt_backward(cudaStream_t stream, const FlashJob& job) {
  if (job.head_dim <= 32)
    backward_of<1>(stream, job);
  else if (job.head_dim <= 64)
    backward_of<2>(stream, job);
  else if (job.head_dim <= 128)
    backward_of<4>(stream, job);
  else
    backward_of<8>(stream, job);
}

}  // namespace convoy::cuda
