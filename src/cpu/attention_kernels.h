// The per-instruction-set part of attention. Plain declarations only (see cpu/isa.h).
#pragma once

#include <cstdint>

namespace convoy::cpu {

// Queries and keys of one block; both multiples of every kernel tile.
constexpr std::int64_t kQueryBlock = 64;
constexpr std::int64_t kKeyBlock = 128;
constexpr std::int64_t kMaxHeadDim = 256;

// One run. "Real" is f32, or f64 for f64. Packed keys and values: per kv head, keys_padded rows.
struct AttentionJob {
  int dtype;  // DType's number
  std::int64_t queries, keys, keys_padded, heads, kv_heads, dim, dim_padded;
  std::int64_t q_stride, k_stride, v_stride, o_stride;
  double scale;
  std::uint32_t drop_below;  // a probability is kept if the upper 24 random bits are >= this; 0 = no dropout
  double keep_scale;
  std::uint32_t use;  // high half of counter word 1; the head is the low half
  std::uint32_t seed[2];
  const std::int64_t* token_keys;
  // Per query: origin of the dropout counter, first key, end of keys. Per query block: the hull of its keys.
  const std::int32_t *start, *low, *high, *block_low, *block_high;
  const void *q, *k, *v, *o, *d_out;
  void *out, *lse;  // lse: Real [heads, queries]
  void *dq, *dk, *dv;
  void *keys_t, *values_t;  // Real, [keys_padded / panel][dim][panel]
  void *keys_p, *values_p;  // Real, [dim / panel][keys_padded][panel]
  void *dk_part, *dv_part;  // Real, [heads * chunks][keys_padded, dim_padded]
  std::int64_t chunks;      // of the queries of one head, each with its own partial sums
};

struct AttentionKernels {
  // Packs kKeyBlock keys of one kv head into those of keys_t, keys_p, values_t, values_p that are not null.
  void (*pack)(const AttentionJob&, std::int64_t kv_head, std::int64_t key_block);
  void (*forward)(const AttentionJob&, std::int64_t head, std::int64_t query_block);
  // dq of every chunks-th query block of one head, and this chunk's share of dk and dv.
  void (*backward)(const AttentionJob&, std::int64_t head, std::int64_t chunk);
  // Sums the shares of kKeyBlock keys of one kv head in a fixed order.
  void (*reduce)(const AttentionJob&, std::int64_t kv_head, std::int64_t key_block);
};

namespace base {
const AttentionKernels& attention_kernels();
}
namespace avx2 {
const AttentionKernels& attention_kernels();
}
namespace avx512 {
const AttentionKernels& attention_kernels();
}

}  // namespace convoy::cpu
