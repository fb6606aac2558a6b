// Grouped-query attention on the GPU in blocks, over packed rows that hold many documents one after the other (Dao,
// "FlashAttention-2", 2023). The meaning, the masks and the bits of dropout are those of cpu::Attention.
//
//   o = softmax(scale q kᵀ + mask) v,  lse = natural log of the softmax's denominator
//
// qkv and dqkv: [tokens, (H+2K)·D], H query heads, then K key heads, then K value heads; query head h reads kv head
// h / (H / K). o and d_o: [tokens, H·D]. lse: f32 [H, tokens]. All are device memory, aligned to 4 bytes at least; 16
// bytes and head sizes of a multiple of 8 are faster. Softmax and sums are f32; probabilities and their gradients are
// rounded to a 16-bit dtype before their products. The same bits on every run: nothing is summed by atomics.
//
// Cross-attention: the queries are rows of q [tokens, H·D], keys and values rows of kv [keys, 2K·D] of another
// sequence, and query t sees the keys [key_begin[t], key_end[t]); one without keys has o = 0 and lse = -inf.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace convoy::cuda {

struct FlashShape {
  DType dtype = DType::kBF16;  // f32, bf16 or f16
  std::int64_t tokens = 0;
  int heads = 1, kv_heads = 1, head_dim = 64;  // head_dim even, at most 256
  bool causal = true;                          // false: a query sees its whole document
  std::int64_t window = 0;                     // > 0: only keys with t - window < key < t + window
  std::int64_t keys = 0;                       // > 0: cross-attention over as many keys; no mask but the ranges
  float scale = 0;                             // 0 = head_dim^(-1/2)
  float dropout = 0;                           // on the probabilities
  std::uint64_t seed = 0;
  std::uint32_t use = 0;
};

// Bytes of the workspace of one pass, a function of the shape alone. Throws an internal error on a shape that makes no
// sense, as do the passes.
std::size_t flash_workspace(const FlashShape& shape, bool backward);

// Enqueues the pass on the stream; the host reads nothing back and nothing is allocated. seq_start: i32 [tokens], index
// of the first token of each token's document. token_keys: i64 [tokens], read with dropout only. The workspace is
// 256-byte aligned. Throws an internal error if a launch fails.
void flash_forward(cudaStream_t stream, const FlashShape& shape, const void* qkv, const std::int32_t* seq_start,
                   const std::int64_t* token_keys, void* o, float* lse, void* workspace);
// Writes every element of dqkv; dk and dv are summed over the heads of a group.
void flash_backward(cudaStream_t stream, const FlashShape& shape, const void* d_o, const void* qkv, const void* o,
                    const float* lse, const std::int32_t* seq_start, const std::int64_t* token_keys, void* dqkv,
                    void* workspace);

// The same for cross-attention, with key_begin and key_end i32 [tokens].
void flash_cross_forward(cudaStream_t stream, const FlashShape& shape, const void* q, const void* kv,
                         const std::int32_t* key_begin, const std::int32_t* key_end, const std::int64_t* token_keys,
                         void* o, float* lse, void* workspace);
void flash_cross_backward(cudaStream_t stream, const FlashShape& shape, const void* d_o, const void* q, const void* kv,
                          const void* o, const float* lse, const std::int32_t* key_begin, const std::int32_t* key_end,
                          const std::int64_t* token_keys, void* dq, void* dkv, void* workspace);

}  // namespace convoy::cuda
