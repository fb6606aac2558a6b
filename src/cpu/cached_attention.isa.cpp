// One query row over many keys: every key and value is read once, for all query heads of its group.
#include "cpu/cached_attention_kernels.h"
#include "cpu/gemm_simd.isa.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr std::int64_t kKeys = 64;  // of one block
constexpr std::int64_t kDim = 256;  // largest head
constexpr std::int64_t kGroup = 8;  // query heads worked on together

template <class R>
struct State {
  alignas(64) R q[kGroup][kDim];
  alignas(64) R o[kGroup][kDim];
  alignas(64) R score[kGroup][kKeys];
  alignas(64) R row[kDim];
  R max[kGroup], sum[kGroup];
};

template <class R>
R dot(const R* a, const R* b, std::int64_t padded) {
  using S = Simd<R>;
  typename S::V total{};
  for (std::int64_t d = 0; d < padded; d += S::kWidth) total += S::load(a + d) * S::load(b + d);
  return horizontal_sum<R>(total);
}

// Scores become exp(score - max); the sums so far follow a new maximum. Scores are in units of log 2.
template <class R>
void softmax_block(State<R>& s, std::int64_t g, std::int64_t n, std::int64_t padded) {
  using S = Simd<R>;
  R best = s.max[g];
  for (std::int64_t i = 0; i < n; ++i) best = s.score[g][i] > best ? s.score[g][i] : best;
  if (best > s.max[g]) {
    const R shrink = s.max[g] == -static_cast<R>(INFINITY) ? R{0} : static_cast<R>(std::exp2(s.max[g] - best));
    s.sum[g] *= shrink;
    for (std::int64_t d = 0; d < padded; d += S::kWidth) S::store(s.o[g] + d, S::load(s.o[g] + d) * shrink);
    s.max[g] = best;
  }
  for (std::int64_t i = n; i < kKeys; ++i) s.score[g][i] = -static_cast<R>(INFINITY);
  typename S::V total{};
  for (std::int64_t i = 0; i < kKeys; i += S::kWidth) {
    const auto p = exp2_vector(S::load(s.score[g] + i) - best);
    total += p;
    S::store(s.score[g] + i, p);
  }
  s.sum[g] += horizontal_sum<R>(total);
}

template <class T>
void group(const CachedAttentionJob& job, std::int64_t token, std::int64_t kv_head, std::int64_t first,
           std::int64_t count) {
  using R = typename T::Real;
  using S = Simd<R>;
  State<R> s;
  const std::int64_t padded = round_up(job.dim, S::kWidth), width = job.kv_heads * job.dim;
  const auto* qkv = static_cast<const typename T::Stored*>(job.qkv) + token * (job.heads + 2 * job.kv_heads) * job.dim +
                    first * job.dim;
  const R factor = static_cast<R>(job.scale * 1.44269504088896340736);
  for (std::int64_t g = 0; g < count; ++g) {
    __builtin_memset(s.q[g], 0, sizeof(s.q[g]));
    __builtin_memset(s.o[g], 0, sizeof(s.o[g]));
    load_row<T>(qkv + g * job.dim, job.dim, s.q[g]);
    for (std::int64_t d = 0; d < padded; d += S::kWidth) S::store(s.q[g] + d, S::load(s.q[g] + d) * factor);
    s.max[g] = -static_cast<R>(INFINITY);
    s.sum[g] = 0;
  }
  __builtin_memset(s.row, 0, sizeof(s.row));
  const std::int64_t end = job.end[token];
  std::int64_t begin = job.begin[token];
  if (job.window > 0 && end - job.window > begin) begin = end - job.window;
  const auto* keys = static_cast<const typename T::Stored*>(job.keys) + kv_head * job.dim;
  const auto* values = static_cast<const typename T::Stored*>(job.values) + kv_head * job.dim;
  for (std::int64_t key = begin; key < end; key += kKeys) {
    const std::int64_t n = end - key < kKeys ? end - key : kKeys;
    for (std::int64_t i = 0; i < n; ++i) {
      load_row<T>(keys + (key + i) * width, job.dim, s.row);
      for (std::int64_t g = 0; g < count; ++g) s.score[g][i] = dot<R>(s.q[g], s.row, padded);
    }
    for (std::int64_t g = 0; g < count; ++g) softmax_block<R>(s, g, n, padded);
    for (std::int64_t i = 0; i < n; ++i) {
      load_row<T>(values + (key + i) * width, job.dim, s.row);
      for (std::int64_t g = 0; g < count; ++g) {
        const R p = s.score[g][i];
        for (std::int64_t d = 0; d < padded; d += S::kWidth)
          S::store(s.o[g] + d, S::load(s.o[g] + d) + S::load(s.row + d) * p);
      }
    }
  }
  auto* out = static_cast<typename T::Stored*>(job.out) + token * job.heads * job.dim + first * job.dim;
  for (std::int64_t g = 0; g < count; ++g) {
    const R inverse = begin < end ? 1 / s.sum[g] : R{0};
    for (std::int64_t d = 0; d < padded; d += S::kWidth) S::store(s.o[g] + d, S::load(s.o[g] + d) * inverse);
    store_row<T>(s.o[g], job.dim, out + g * job.dim);
  }
}

void run(const CachedAttentionJob& job, std::int64_t token, std::int64_t kv_head) {
  const std::int64_t per_group = job.heads / job.kv_heads;
  with_storage(job.dtype, [&]<class T>(T) {
    for (std::int64_t g = 0; g < per_group; g += kGroup)
      group<T>(job, token, kv_head, kv_head * per_group + g, per_group - g < kGroup ? per_group - g : kGroup);
  });
}

}  // namespace

const CachedAttentionKernels& cached_attention_kernels() {
  static constexpr CachedAttentionKernels kKernels{&run};
  return kKernels;
}

}  // namespace convoy::cpu::CONVOY_ISA
