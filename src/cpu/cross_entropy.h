// The language-model head and its loss in one operation that never holds all the logits: only the rows that have a
// target go through the head, `chunk_rows` at a time.
//
//   z = x Wᵀ, lse = log Σ_v exp z_v
//   loss = Σ over rows with a target y of (1 - ε) (lse - z_y) + ε (lse - mean_v z_v) + z_loss lse²
//
// Logits and sums are f32 (f64 for f64), the loss is summed in f64, in the order of the rows. The same bits for any
// number of threads; nothing is allocated by a run (but for oneDNN's bookkeeping, see cpu/gemm.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/dtype.h"

namespace convoy::cpu {

struct CrossEntropySpec {
  DType dtype = DType::kF32;  // of x, W and dx
  std::int64_t tokens = 0, dim = 0, vocab = 0;
  std::int64_t chunk_rows = 256;
  bool backward = false;  // also dx and dW, unless said otherwise
  bool with_dx = true, with_dw = true;
  bool accumulate_dw = false;  // dW += …
  bool count_correct = false;  // rows whose first largest logit is the target's
  double label_smoothing = 0;  // ε
  double z_loss = 0;
};

struct CrossEntropyArgs {
  const void* x = nullptr;                // [tokens, dim]
  const void* weight = nullptr;           // [vocab, dim]
  const std::int32_t* targets = nullptr;  // [tokens], -1 = none
  double* loss_sum = nullptr;
  std::int64_t* target_count = nullptr;   // rows with a target; optional
  std::int64_t* correct_count = nullptr;  // needed with count_correct
  const float* grad_scale = nullptr;      // factor of the gradients, read by the run; null = 1
  void* dx = nullptr;                     // [tokens, dim], of dtype; rows without a target become 0
  void* dweight = nullptr;                // [vocab, dim] f32 (f64 for f64)
  void* workspace = nullptr;              // workspace_bytes(), 64-byte aligned
};

class CrossEntropy {
 public:
  // Throws an internal error on a spec that makes no sense.
  explicit CrossEntropy(const CrossEntropySpec& spec);
  ~CrossEntropy();
  CrossEntropy(CrossEntropy&&) noexcept;
  CrossEntropy& operator=(CrossEntropy&&) noexcept;

  const CrossEntropySpec& spec() const;
  // A function of the spec and the processor's instruction set.
  std::size_t workspace_bytes() const;
  // Throws a data error on a target outside of the vocabulary.
  void run(const CrossEntropyArgs& args) const;

 private:
  struct Plan;
  std::unique_ptr<const Plan> plan_;
};

}  // namespace convoy::cpu
