// The language-model head and its loss in one operation, in chunks of rows: the logits never exist as a whole.
#pragma once

#include "graph/op.h"

namespace convoy {

struct CrossEntropyShape {
  std::int64_t chunk_rows = 0;  // rows of logits held at a time; 0 = the device's choice
  double z_loss = 0;            // adds z_loss·log²Z per target (Chowdhery et al., "PaLM", 2022)
  double label_smoothing = 0;
};

// Positions in the statistics that the operation returns.
enum LossStatistic : std::int64_t { kLossSum = 0, kTargetCount = 1, kCorrectCount = 2, kLossStatistics = 4 };

// (x [tokens, d], weight [V, d], targets i32[tokens], -1 = none) → statistics[4]: the sum of the losses over the
// targets, their number, and how many were the most likely token.
struct LinearCrossEntropy final : Op {
  explicit LinearCrossEntropy(CrossEntropyShape s) : shape(s) {}
  std::string_view name() const override { return "linear_cross_entropy"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  // The gradient is computed together with the loss, from a scale known before: the gradient of the statistics must be
  // a value that the host sets (see differentiate.h).
  void backward(BackwardContext& context) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  CrossEntropyShape shape;
};

// (x, weight, targets, scale [1], sum?) → statistics, dx, dweight = scale times the gradients of the loss sum. A
// gradient that is not wanted is not computed, and empty.
struct LinearCrossEntropyGrad final : Op {
  explicit LinearCrossEntropyGrad(CrossEntropyShape s, bool wants_dx = true, bool wants_dweight = true)
      : shape(s), dx(wants_dx), dweight(wants_dweight) {}
  std::string_view name() const override { return "linear_cross_entropy_grad"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
  std::vector<Alias> aliases() const override { return {{2, 4, true}}; }
  CrossEntropyShape shape;
  bool dx, dweight;
};

}  // namespace convoy
