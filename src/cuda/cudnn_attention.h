// cuDNN's fused attention where every sequence of queries sees all of one sequence of keys (or, causal, those before).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/context.h"
#include "graph/ops/attention.h"

namespace convoy::cuda {

// Sequences of one length each. A row has the heads of one token side by side; `q_row` and `kv_row` count the elements
// from one token's queries, and from one's keys or values, to the next's.
struct DenseAttention {
  std::int64_t rows = 0, queries = 0, keys = 0;
  std::int64_t q_row = 0, kv_row = 0;
};

// o and its gradient are [rows·queries, H·D], the log-sum-exp is [rows, H, queries]; gradients lie as their tensors.
class CudnnAttention {
 public:
  // Null where cuDNN is missing or has no kernel for the shape, on this card; `deterministic` as in Options.
  static std::shared_ptr<CudnnAttention> make(Context& context, const AttentionShape& shape, DType dtype,
                                              const DenseAttention& dense, bool backward);
  // One of the two passes, where there are both: they share the log-sum-exp, whose order is cuDNN's own.
  static std::shared_ptr<CudnnAttention> make_pass(Context& context, const AttentionShape& shape, DType dtype,
                                                   const DenseAttention& dense, bool backward) {
    auto other = make(context, shape, dtype, dense, !backward);
    return other ? make(context, shape, dtype, dense, backward) : nullptr;
  }
  virtual ~CudnnAttention() = default;
  virtual std::size_t workspace_bytes() const = 0;
  virtual void forward(const void* q, const void* k, const void* v, void* o, float* lse, void* workspace) const = 0;
  virtual void backward(const void* d_o, const void* q, const void* k, const void* v, const void* o, const float* lse,
                        void* dq, void* dk, void* dv, void* workspace) const = 0;
};

}  // namespace convoy::cuda
