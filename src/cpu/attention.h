// Prepared grouped-query attention on the CPU in blocks ("flash": the matrix of scores never exists), over rows that
// hold many documents one after the other.
//
//   o = softmax(scale q kᵀ + mask) v,  lse = log of the softmax's denominator, query head h reads kv head h / (H / K)
//
// Softmax and sums are f32 (f64 for f64). The same bits for any number of threads; nothing is allocated by a run.
// Blocks of keys that no query of a block may see (another document, outside of the window) are not touched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace convoy::cpu {

enum class AttentionMask : std::uint8_t {
  kCausal,    // keys [seq_start[t], t]
  kDocument,  // all keys of the query's document, both ways
  kRanges,    // keys [key_begin[t], key_end[t]) of another sequence (cross-attention)
};

struct AttentionSpec {
  DType dtype = DType::kF32;
  std::int64_t tokens = 0;                              // queries
  std::int64_t keys = 0;                                // 0 = tokens; may differ for kRanges only
  std::int64_t heads = 1, kv_heads = 1, head_dim = 64;  // head_dim even, at most 256
  // Elements between rows; 0 = a packed row of H·D queries, K·D keys, K·D values (o: H·D). The gradients lie alike.
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, o_stride = 0;
  AttentionMask mask = AttentionMask::kCausal;
  std::int64_t window = 0;  // > 0: only keys with t - window < key (and key < t + window)
  double scale = 0;         // 0 = head_dim^(-1/2)
  // Dropout on probabilities (rounded to f32): the one of (query t, head h, key j) is kept, times 1 / (1 - dropout), if
  //   to_unit(philox({r / 4, use·65536 + h, low and high half of token_keys[t]}, philox_key(seed))[r % 4]) >= dropout
  // with r = j - seq_start[t] (key_begin[t] for kRanges).
  double dropout = 0;
  std::uint32_t use = 0;
};

struct AttentionInput {
  const void* q = nullptr;  // head 0 of row 0
  const void* k = nullptr;
  const void* v = nullptr;
  const std::int32_t* seq_start = nullptr;  // [tokens], index of the first token of the token's document
  const std::int32_t* key_begin = nullptr;  // [tokens], kRanges
  const std::int32_t* key_end = nullptr;
  const std::int64_t* token_keys = nullptr;  // [tokens], with dropout
  std::uint64_t seed = 0;
};

class Attention {
 public:
  // Throws an internal error on a spec that makes no sense.
  explicit Attention(const AttentionSpec& spec);

  const AttentionSpec& spec() const { return spec_; }
  // Functions of the spec.
  std::size_t forward_workspace_bytes() const;
  std::size_t backward_workspace_bytes() const;

  // The input's q, k and v for rows that hold queries, keys and values side by side.
  AttentionInput packed(const void* qkv) const;

  // o [tokens, H·D], lse f32 (f64 for f64) [H, tokens]; a query without keys gives o = 0, lse = -inf. The workspace is
  // 64-byte aligned. Throws an internal error if a range of keys leaves the sequence.
  void forward(const AttentionInput& in, void* o, void* lse, void* workspace) const;
  // Writes every element of dq, dk and dv (strides of q, k, v); dk and dv are summed over the heads of a group.
  void backward(const AttentionInput& in, const void* o, const void* lse, const void* d_o, void* dq, void* dk, void* dv,
                void* workspace) const;

 private:
  AttentionSpec spec_;
};

}  // namespace convoy::cpu
