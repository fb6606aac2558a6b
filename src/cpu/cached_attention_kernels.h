// The per-instruction-set part of attention over kept keys and values. Plain declarations only (see cpu/isa.h).
#pragma once

#include <cstdint>

namespace convoy::cpu {

struct CachedAttentionJob {
  int dtype;  // DType's number
  std::int64_t heads, kv_heads, dim, window;
  double scale;
  const void *qkv, *keys, *values;  // [tokens, (H+2K)·D], [rows, K·D], [rows, K·D]
  const std::int32_t *begin, *end;  // [tokens]: the rows that each sees
  void* out;                        // [tokens, H·D]
};

struct CachedAttentionKernels {
  // The queries of one token that share a key head.
  void (*run)(const CachedAttentionJob&, std::int64_t token, std::int64_t kv_head);
};

namespace base {
const CachedAttentionKernels& cached_attention_kernels();
}
namespace avx2 {
const CachedAttentionKernels& cached_attention_kernels();
}
namespace avx512 {
const CachedAttentionKernels& cached_attention_kernels();
}

}  // namespace convoy::cpu
