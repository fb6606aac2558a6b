// The forward pass by tensor cores: a block owns a tile of queries of one head and walks over the keys that any of them
// sees, two tiles of keys and values in flight (Dao, "FlashAttention-2", 2023).
#include "cuda/flash_tiles.cuh"

namespace convoy::cuda {
namespace {

// Taller warps reuse each loaded key twice; wide heads leave no registers for that.
template <int kDim>
struct ForwardTiles {
  static constexpr int kTall = kDim <= 128 ? 2 : 1;
  static constexpr int kWarps = kDim <= 128 ? 4 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kQueries = 16 * kTall * kWarps;
  static constexpr int kKeys = kDim <= 192 ? 64 : 32;
  static constexpr int kMinBlocks = kDim <= 128 ? 2 : 1;
  static constexpr bool kHoldQueries = kDim <= 64;  // in registers
  static constexpr int kQueryBytes = Tile<kDim>::bytes(kQueries), kKeyBytes = Tile<kDim>::bytes(kKeys);
  static constexpr std::size_t kShared = kQueryBytes + 4 * kKeyBytes;
};

// The row sums and maxima of the online softmax; sums are of the lane's own columns until the end.
template <int kTall>
struct Softmax {
  float top[kTall][2], sum[kTall][2];

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int m = 0; m < kTall; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) top[m][half] = -INFINITY, sum[m][half] = 0;
  }

  // Scores become exp(scale (s - max)); o and the sums follow the new maximum.
  template <int kWide, int kColumns>
  __device__ __forceinline__ void step(float (&s)[kTall][kWide][4], float scale_log2, float (&o)[kTall][kColumns][4]) {
#pragma unroll
    for (int m = 0; m < kTall; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float best = top[m][half];
#pragma unroll
        for (int n = 0; n < kWide; ++n) best = fmaxf(best, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        best = lanes_max<4>(best);
        // A row that has seen nothing yet: exp(-inf - 0) instead of exp(-inf + inf).
        const float offset = best == -INFINITY ? 0.0f : best * scale_log2;
        const float shrink = fast_exp2(top[m][half] * scale_log2 - offset);
        top[m][half] = best;
        float total = 0;
#pragma unroll
        for (int n = 0; n < kWide; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[m][n][e] = fast_exp2(s[m][n][e] * scale_log2 - offset);
            total += s[m][n][e];
          }
        sum[m][half] = sum[m][half] * shrink + total;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          o[m][n][2 * half] *= shrink;
          o[m][n][2 * half + 1] *= shrink;
        }
      }
  }
};

template <int kTall, int kWide>
__device__ __forceinline__ void drop_rows(const FlashJob& job, int head, int first_query, int first_key,
                                          float (&p)[kTall][kWide][4]) {
  QueryRowBits<kTall, kWide> bits;
  bits.fill(job, head, first_query, first_key);
#pragma unroll
  for (int m = 0; m < kTall; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < kWide; ++n) {
        const std::uint32_t word = bits.row(m, half, n / 4) >> (n % 4 * 8);
        if (!(word & 1)) p[m][n][2 * half] = 0;
        if (!(word & 2)) p[m][n][2 * half + 1] = 0;
      }
}

template <class T, int kDim>
__global__ void __launch_bounds__(ForwardTiles<kDim>::kThreads, ForwardTiles<kDim>::kMinBlocks)
    forward_kernel(const __grid_constant__ FlashJob job) {
  using F = ForwardTiles<kDim>;
  constexpr int kTall = F::kTall, kKeys = F::kKeys, kWide = kKeys / 8, kRowBytes = Tile<kDim>::kRowBytes;
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);  // with a causal mask the last see the most keys
  const int head = static_cast<int>(blockIdx.y), kv = head / job.group;
  const int first = block * F::kQueries, warp_row = static_cast<int>(threadIdx.x / 32) * 16 * kTall;
  const std::uint16_t* q = static_cast<const std::uint16_t*>(job.q) + head * job.head_dim;
  const std::uint16_t* k = static_cast<const std::uint16_t*>(job.k) + kv * job.head_dim;
  const std::uint16_t* v = static_cast<const std::uint16_t*>(job.v) + kv * job.head_dim;
  const std::uint32_t q_at = shared_address(shared_bytes()), k_at = q_at + F::kQueryBytes;
  // Stages of keys and values: K V K V.
  const auto copy_keys = [&](int key, int stage) {
    const std::uint32_t to = k_at + static_cast<std::uint32_t>(stage * 2 * F::kKeyBytes);
    copy_rows<kDim, kKeys, F::kThreads>(to, k, job.kv_row, key, job.keys, job.head_dim, job.wide);
    copy_rows<kDim, kKeys, F::kThreads>(to + F::kKeyBytes, v, job.kv_row, key, job.keys, job.head_dim, job.wide);
    copy_commit();
  };

  const int2 hull = job.key_hull[block];
  copy_rows<kDim, F::kQueries, F::kThreads>(q_at, q, job.q_row, first, job.tokens, job.head_dim, job.wide);
  copy_keys(hull.x, 0);
  const WarpRange seen = warp_range<kTall>(job.key_range, first + warp_row, job.tokens);
  float o[kTall][kDim / 8][4];
  clear(o);
  Softmax<kTall> softmax;
  softmax.begin();
  const std::uint32_t q_lane = q_at + static_cast<std::uint32_t>(warp_row * kRowBytes) + lane_by_rows<kDim>();
  std::uint32_t held[kTall][kDim / 16][4];
  int stage = 0;
  for (int key = hull.x; key < hull.y; key += kKeys, stage ^= 1) {
    copy_wait<0>();
    __syncthreads();  // this stage is there for all, and nobody reads the other one any more
    if (key + kKeys < hull.y) copy_keys(key + kKeys, stage ^ 1);
    if (F::kHoldQueries && key == hull.x) {
#pragma unroll
      for (int m = 0; m < kTall; ++m)
#pragma unroll
        for (int d = 0; d < kDim / 16; ++d) load_matrices(held[m][d], q_lane + m * 16 * kRowBytes + d * 32);
    }
    if (!seen.touches(key, kKeys)) continue;
    const std::uint32_t k_stage = k_at + static_cast<std::uint32_t>(stage * 2 * F::kKeyBytes);
    float s[kTall][kWide][4];
    if constexpr (F::kHoldQueries)
      score_product<T, kDim>(held, k_stage + lane_by_columns<kDim>(), s);
    else
      score_product<T, kDim>(q_lane, k_stage + lane_by_columns<kDim>(), s);
    if (!seen.fills(key, kKeys)) mask_scores(s, job.key_range, first + warp_row, job.tokens, key);
    softmax.step(s, job.scale_log2, o);
    if (job.drop_below != 0) drop_rows(job, head, first + warp_row, key, s);
    add_product<T, kDim>(s, k_stage + F::kKeyBytes + lane_by_rows<kDim>(), o);
  }

#pragma unroll
  for (int m = 0; m < kTall; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = lanes_sum<4>(softmax.sum[m][half]);
      const float factor = total > 0 ? job.keep_scale / total : 0.0f;  // a query may see no key
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        o[m][n][2 * half] *= factor;
        o[m][n][2 * half + 1] *= factor;
      }
      const int lane = static_cast<int>(threadIdx.x % 32);
      const int row = first + warp_row + 16 * m + 8 * half + lane / 4;
      if (lane % 4 == 0 && row < job.tokens)
        job.lse[static_cast<std::int64_t>(head) * job.tokens + row] = softmax.top[m][half] * job.scale + logf(total);
    }
  store_rows<T>(o, 1.0f, static_cast<std::uint16_t*>(job.o) + head * job.head_dim, job.o_row, first + warp_row,
                job.tokens, 0, job.head_dim);
}

template <class T, int kDim>
void run(cudaStream_t stream, const FlashJob& job) {
  using F = ForwardTiles<kDim>;
  launch<forward_kernel<T, kDim>>(stream, dim3(grid_of(job.tokens, F::kQueries), static_cast<unsigned>(job.heads)),
                                  F::kThreads, F::kShared, job);
}

}  // namespace

int forward_queries(int head_dim) {
  return for_padded_dim(head_dim, [](auto dim) { return ForwardTiles<dim()>::kQueries; });
}

template <class T>
void mma_forward(cudaStream_t stream, const FlashJob& job) {
  for_padded_dim(job.head_dim, [&](auto dim) { run<T, dim()>(stream, job); });
}
template void mma_forward<Half>(cudaStream_t, const FlashJob&);
template void mma_forward<Bfloat>(cudaStream_t, const FlashJob&);

}  // namespace convoy::cuda
