// The loss of few classes, whose scores exist as a whole: classification, and the choice between alternatives.
#pragma once

#include "graph/op.h"
#include "graph/ops/linear_cross_entropy.h"

namespace convoy {

// (scores of items · classes elements, an item's side by side; labels i32[items], -1 = none) → statistics[4] as of
// LinearCrossEntropy. Of equal scores the first is the most likely.
struct CrossEntropy final : Op {
  explicit CrossEntropy(std::int64_t class_count) : classes(class_count) {}
  std::string_view name() const override { return "cross_entropy"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  std::int64_t classes;
};

// (scores, labels, scale [1]) → d(scores) = scale · (softmax − onehot), 0 where there is no label.
struct CrossEntropyGrad final : Op {
  explicit CrossEntropyGrad(std::int64_t class_count) : classes(class_count) {}
  std::string_view name() const override { return "cross_entropy_grad"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override { return {*in[0]}; }
  std::vector<Alias> aliases() const override { return {{0, 0, false}}; }
  std::int64_t classes;
};

}  // namespace convoy
