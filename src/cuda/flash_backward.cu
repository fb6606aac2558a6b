// The backward pass by tensor cores (Dao, "FlashAttention-2", 2023): one kernel for dk and dv, whose blocks own a tile
// of keys of a kv head, and one for dq, whose blocks own a tile of queries of a head. Both recompute the probabilities,
// so that every sum has one owner and one order.
#include "cuda/flash_tiles.cuh"

namespace convoy::cuda {
namespace {

template <int kDim>
struct KeysTiles {
  static constexpr int kTall = kDim <= 64 ? 2 : 1;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kKeys = 16 * kTall * kWarps;
  static constexpr int kQueries = kDim == 96 || kDim == 128 ? 64 : 32;
  // Of the elements of a head: the sums of dk and dv of wide heads do not fit the registers, so that blocks share them.
  static constexpr int kParts = kDim > 128 ? 2 : 1;
  static constexpr int kKeyBytes = Tile<kDim>::bytes(kKeys), kQueryBytes = Tile<kDim>::bytes(kQueries);
  static constexpr int kStageBytes = 2 * kQueryBytes + 2 * kQueries * static_cast<int>(sizeof(float));
  static constexpr std::size_t kShared = 2 * kKeyBytes + 2 * kStageBytes;
};

template <int kDim>
struct QueriesTiles {
  static constexpr int kTall = kDim <= 128 ? 2 : 1;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kQueries = 16 * kTall * kWarps;
  static constexpr int kKeys = 32;
  static constexpr int kQueryBytes = Tile<kDim>::bytes(kQueries), kKeyBytes = Tile<kDim>::bytes(kKeys);
  static constexpr std::size_t kShared = 2 * kQueryBytes + 4 * kKeyBytes;
};

// From s = q·k (-inf where not seen) and dp = dO·v: s becomes the kept probability (without the factor of dropout),
// dp the gradient of scale · s.
__device__ __forceinline__ void score_gradient(float scale_log2, float lse2, float delta, float& s, float& dp) {
  s = fast_exp2(s * scale_log2 - lse2);
  dp = s * (dp - delta);
}
__device__ __forceinline__ void score_gradient(float scale_log2, float lse2, float delta, bool keep, float keep_scale,
                                               float& s, float& dp) {
  const float p = fast_exp2(s * scale_log2 - lse2);
  s = keep ? p : 0.0f;
  dp = p * ((keep ? dp * keep_scale : 0.0f) - delta);
}

// --- dk and dv -----------------------------------------------------------------------------------------------------

// Keys as rows, queries as columns; lse2 and delta of the columns in shared memory.
template <int kTall, int kWide>
__device__ __forceinline__ void column_gradients(const FlashJob& job, int head, int first_query, int first_key,
                                                 const float* lse2, const float* delta, float (&s)[kTall][kWide][4],
                                                 float (&dp)[kTall][kWide][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (job.drop_below == 0) {
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      const float2 l = *reinterpret_cast<const float2*>(lse2 + 8 * n + lane % 4 * 2);
      const float2 d = *reinterpret_cast<const float2*>(delta + 8 * n + lane % 4 * 2);
#pragma unroll
      for (int m = 0; m < kTall; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          score_gradient(job.scale_log2, e % 2 ? l.y : l.x, e % 2 ? d.y : d.x, s[m][n][e], dp[m][n][e]);
    }
    return;
  }
  QueryColumnBits<kTall, kWide> bits;
  bits.fill(job, head, first_query, first_key);
#pragma unroll
  for (int n = 0; n < kWide; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const std::uint32_t word = bits.column(n, e);
      const float l = lse2[8 * n + lane % 4 * 2 + e], d = delta[8 * n + lane % 4 * 2 + e];
#pragma unroll
      for (int m = 0; m < kTall; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          score_gradient(job.scale_log2, l, d, (word >> (16 * m + 8 * half)) & 1, job.keep_scale, s[m][n][2 * half + e],
                         dp[m][n][2 * half + e]);
    }
}

template <class T, int kDim>
__global__ void __launch_bounds__(KeysTiles<kDim>::kThreads) keys_kernel(const __grid_constant__ FlashJob job) {
  using F = KeysTiles<kDim>;
  constexpr int kTall = F::kTall, kQueries = F::kQueries, kWide = kQueries / 8, kRowBytes = Tile<kDim>::kRowBytes;
  constexpr int kColumns = kDim / F::kParts / 8;
  const int block = static_cast<int>(blockIdx.x), kv = static_cast<int>(blockIdx.y);
  const int first = block * F::kKeys, warp_row = static_cast<int>(threadIdx.x / 32) * 16 * kTall;
  const int first_column = static_cast<int>(blockIdx.z) * kColumns * 8;
  const std::uint16_t* q = static_cast<const std::uint16_t*>(job.q);
  const int column = kv * job.head_dim;
  const std::uint32_t k_at = shared_address(shared_bytes()), v_at = k_at + F::kKeyBytes;
  // Stages of queries, dO, lse2 and delta.
  const std::uint32_t stages_at = v_at + F::kKeyBytes;
  const auto copy_queries = [&](int head, int query, int stage) {
    const std::uint32_t to = stages_at + static_cast<std::uint32_t>(stage * F::kStageBytes);
    copy_rows<kDim, kQueries, F::kThreads>(to, q + head * job.head_dim, job.q_row, query, job.tokens, job.head_dim,
                                           job.wide);
    copy_rows<kDim, kQueries, F::kThreads>(to + F::kQueryBytes,
                                           static_cast<const std::uint16_t*>(job.d_o) + head * job.head_dim, job.o_row,
                                           query, job.tokens, job.head_dim, job.wide);
    const int i = static_cast<int>(threadIdx.x);
    if (i < 2 * kQueries) {
      const bool valid = query + i % kQueries < job.tokens;
      const float* from = (i < kQueries ? job.lse2 : job.delta) + static_cast<std::int64_t>(head) * job.tokens;
      copy_async<4>(to + static_cast<std::uint32_t>(2 * F::kQueryBytes + i * 4),
                    valid ? from + query + i % kQueries : from, valid);
    }
    copy_commit();
  };

  const int2 hull = job.query_hull[block];
  int head = kv * job.group, query = hull.x;
  const int heads_end = head + job.group;
  copy_rows<kDim, F::kKeys, F::kThreads>(k_at, static_cast<const std::uint16_t*>(job.k) + column, job.kv_row, first,
                                         job.keys, job.head_dim, job.wide);
  copy_rows<kDim, F::kKeys, F::kThreads>(v_at, static_cast<const std::uint16_t*>(job.v) + column, job.kv_row, first,
                                         job.keys, job.head_dim, job.wide);
  copy_queries(head, query, 0);
  const WarpRange seen = warp_range<kTall>(job.query_range, first + warp_row, job.keys);
  float dk[kTall][kColumns][4], dv[kTall][kColumns][4];
  clear(dk);
  clear(dv);
  const std::uint32_t lane_row = static_cast<std::uint32_t>(warp_row * kRowBytes) + lane_by_rows<kDim>();
  int stage = 0;
  while (head < heads_end) {
    copy_wait<0>();
    __syncthreads();  // this stage is there for all, and nobody reads the other one any more
    int next_head = head, next_query = query + kQueries;
    if (next_query >= hull.y) {
      next_query = hull.x;
      ++next_head;
    }
    if (next_head < heads_end) copy_queries(next_head, next_query, stage ^ 1);
    if (seen.touches(query, kQueries)) {
      const std::uint32_t q_stage = stages_at + static_cast<std::uint32_t>(stage * F::kStageBytes);
      const float* lse2 = reinterpret_cast<const float*>(shared_bytes() + 2 * F::kKeyBytes + stage * F::kStageBytes +
                                                         2 * F::kQueryBytes);
      float s[kTall][kWide][4], dp[kTall][kWide][4];
      score_product<T, kDim>(k_at + lane_row, q_stage + lane_by_columns<kDim>(), s);
      if (job.cross)
        mask_columns(s, job.key_range, first + warp_row, query, job.tokens);
      else if (!seen.fills(query, kQueries))
        mask_scores(s, job.query_range, first + warp_row, job.keys, query);
      score_product<T, kDim>(v_at + lane_row, q_stage + F::kQueryBytes + lane_by_columns<kDim>(), dp);
      column_gradients(job, head, query, first + warp_row, lse2, lse2 + kQueries, s, dp);
      const std::uint32_t q_columns = q_stage + lane_by_rows<kDim>() + static_cast<std::uint32_t>(first_column * 2);
      add_product<T, kDim>(s, q_columns + F::kQueryBytes, dv);
      add_product<T, kDim>(dp, q_columns, dk);
    }
    head = next_head;
    query = next_query;
    stage ^= 1;
  }
  store_rows<T>(dk, job.scale, static_cast<std::uint16_t*>(job.dk) + column, job.kv_row, first + warp_row, job.keys,
                first_column, job.head_dim);
  store_rows<T>(dv, job.keep_scale, static_cast<std::uint16_t*>(job.dv) + column, job.kv_row, first + warp_row,
                job.keys, first_column, job.head_dim);
}

// --- dq ------------------------------------------------------------------------------------------------------------

// Queries as rows, keys as columns.
template <int kTall, int kWide>
__device__ __forceinline__ void row_gradients(const FlashJob& job, int head, int first_query, int first_key,
                                              const float (&lse2)[kTall][2], const float (&delta)[kTall][2],
                                              float (&s)[kTall][kWide][4], float (&dp)[kTall][kWide][4]) {
  if (job.drop_below == 0) {
#pragma unroll
    for (int m = 0; m < kTall; ++m)
#pragma unroll
      for (int n = 0; n < kWide; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          score_gradient(job.scale_log2, lse2[m][e / 2], delta[m][e / 2], s[m][n][e], dp[m][n][e]);
    return;
  }
  QueryRowBits<kTall, kWide> bits;
  bits.fill(job, head, first_query, first_key);
#pragma unroll
  for (int m = 0; m < kTall; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < kWide; ++n) {
        const std::uint32_t word = bits.row(m, half, n / 4) >> (n % 4 * 8);
#pragma unroll
        for (int e = 0; e < 2; ++e)
          score_gradient(job.scale_log2, lse2[m][half], delta[m][half], (word >> e) & 1, job.keep_scale,
                         s[m][n][2 * half + e], dp[m][n][2 * half + e]);
      }
}

template <class T, int kDim>
__global__ void __launch_bounds__(QueriesTiles<kDim>::kThreads) queries_kernel(const __grid_constant__ FlashJob job) {
  using F = QueriesTiles<kDim>;
  constexpr int kTall = F::kTall, kKeys = F::kKeys, kWide = kKeys / 8, kRowBytes = Tile<kDim>::kRowBytes;
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);  // with a causal mask the last see the most keys
  const int head = static_cast<int>(blockIdx.y), kv = head / job.group;
  const int first = block * F::kQueries, warp_row = static_cast<int>(threadIdx.x / 32) * 16 * kTall;
  const std::uint16_t* q = static_cast<const std::uint16_t*>(job.q) + head * job.head_dim;
  const std::uint16_t* k = static_cast<const std::uint16_t*>(job.k) + kv * job.head_dim;
  const std::uint16_t* v = static_cast<const std::uint16_t*>(job.v) + kv * job.head_dim;
  const std::uint16_t* d_o = static_cast<const std::uint16_t*>(job.d_o) + head * job.head_dim;
  const std::uint32_t q_at = shared_address(shared_bytes()), do_at = q_at + F::kQueryBytes;
  const std::uint32_t k_at = do_at + F::kQueryBytes;
  // Stages of keys and values: K V K V.
  const auto copy_keys = [&](int key, int stage) {
    const std::uint32_t to = k_at + static_cast<std::uint32_t>(stage * 2 * F::kKeyBytes);
    copy_rows<kDim, kKeys, F::kThreads>(to, k, job.kv_row, key, job.keys, job.head_dim, job.wide);
    copy_rows<kDim, kKeys, F::kThreads>(to + F::kKeyBytes, v, job.kv_row, key, job.keys, job.head_dim, job.wide);
    copy_commit();
  };

  const int2 hull = job.key_hull[block];
  copy_rows<kDim, F::kQueries, F::kThreads>(q_at, q, job.q_row, first, job.tokens, job.head_dim, job.wide);
  copy_rows<kDim, F::kQueries, F::kThreads>(do_at, d_o, job.o_row, first, job.tokens, job.head_dim, job.wide);
  copy_keys(hull.x, 0);
  const WarpRange seen = warp_range<kTall>(job.key_range, first + warp_row, job.tokens);
  float lse2[kTall][2], delta[kTall][2];
#pragma unroll
  for (int m = 0; m < kTall; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + warp_row + 16 * m + 8 * half + static_cast<int>(threadIdx.x % 32) / 4;
      const std::int64_t at = static_cast<std::int64_t>(head) * job.tokens + min(row, job.tokens - 1);
      lse2[m][half] = job.lse2[at];
      delta[m][half] = job.delta[at];
    }
  float dq[kTall][kDim / 8][4];
  clear(dq);
  const std::uint32_t lane_row = static_cast<std::uint32_t>(warp_row * kRowBytes) + lane_by_rows<kDim>();
  int stage = 0;
  for (int key = hull.x; key < hull.y; key += kKeys, stage ^= 1) {
    copy_wait<0>();
    __syncthreads();  // this stage is there for all, and nobody reads the other one any more
    if (key + kKeys < hull.y) copy_keys(key + kKeys, stage ^ 1);
    if (!seen.touches(key, kKeys)) continue;
    const std::uint32_t k_stage = k_at + static_cast<std::uint32_t>(stage * 2 * F::kKeyBytes);
    float s[kTall][kWide][4], dp[kTall][kWide][4];
    score_product<T, kDim>(q_at + lane_row, k_stage + lane_by_columns<kDim>(), s);
    if (!seen.fills(key, kKeys)) mask_scores(s, job.key_range, first + warp_row, job.tokens, key);
    score_product<T, kDim>(do_at + lane_row, k_stage + F::kKeyBytes + lane_by_columns<kDim>(), dp);
    row_gradients(job, head, first + warp_row, key, lse2, delta, s, dp);
    add_product<T, kDim>(dp, k_stage + lane_by_rows<kDim>(), dq);
  }
  store_rows<T>(dq, job.scale, static_cast<std::uint16_t*>(job.dq) + head * job.head_dim, job.q_row, first + warp_row,
                job.tokens, 0, job.head_dim);
}

}  // namespace

FlashTiles mma_tiles(int head_dim) {
  return for_padded_dim(head_dim, [&](auto dim) {
    return FlashTiles{forward_queries(head_dim), QueriesTiles<dim()>::kQueries, KeysTiles<dim()>::kKeys};
  });
}

template <class T>
void mma_backward_keys(cudaStream_t stream, const FlashJob& job) {
  for_padded_dim(job.head_dim, [&](auto dim) {
    using F = KeysTiles<dim()>;
    launch<keys_kernel<T, dim()>>(stream,
                                  dim3(grid_of(job.keys, F::kKeys), static_cast<unsigned>(job.kv_heads), F::kParts),
                                  F::kThreads, F::kShared, job);
  });
}

template <class T>
void mma_backward_queries(cudaStream_t stream, const FlashJob& job) {
  for_padded_dim(job.head_dim, [&](auto dim) {
    using F = QueriesTiles<dim()>;
    launch<queries_kernel<T, dim()>>(stream, dim3(grid_of(job.tokens, F::kQueries), static_cast<unsigned>(job.heads)),
                                     F::kThreads, F::kShared, job);
  });
}

template void mma_backward_keys<Half>(cudaStream_t, const FlashJob&);
template void mma_backward_keys<Bfloat>(cudaStream_t, const FlashJob&);
template void mma_backward_queries<Half>(cudaStream_t, const FlashJob&);
template void mma_backward_queries<Bfloat>(cudaStream_t, const FlashJob&);

}  // namespace convoy::cuda
