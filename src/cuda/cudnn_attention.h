// cuDNN's fused attention on packed rows whose documents are whole rows of one length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/context.h"
#include "graph/ops/attention.h"

namespace convoy::cuda {

// The layouts are those of graph/ops/attention.h; the log-sum-exp is [rows, H, length].
class CudnnAttention {
 public:
  // Null where cuDNN is missing or has no kernel for the shape, on this card; `deterministic` as in Options.
  static std::shared_ptr<CudnnAttention> make(Context& context, const AttentionShape& shape, DType dtype,
                                              std::int64_t rows, std::int64_t length, bool backward);
  virtual ~CudnnAttention() = default;
  virtual std::size_t workspace_bytes() const = 0;
  virtual void forward(const void* qkv, void* o, float* lse, void* workspace) const = 0;
  virtual void backward(const void* d_o, const void* qkv, const void* o, const float* lse, void* dqkv,
                        void* workspace) const = 0;
};

}  // namespace convoy::cuda
