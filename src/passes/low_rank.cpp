#include "passes/low_rank.h"

#include <utility>

#include "base/error.h"
#include "graph/ops/columns.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/linear.h"

namespace convoy {
namespace {

class Branching {
 public:
  Branching(Graph& graph, const std::vector<LowRankBranch>& branches, const LowRankOptions& options)
      : graph_(graph), options_(options) {
    for (const LowRankBranch& branch : branches) of_weight_[branch.weight].push_back(&branch);
  }

  std::map<ValueId, ValueId> run() {
    const std::vector<Node> nodes = graph_.nodes();
    for (Node node : nodes) {
      for (ValueId& id : node.inputs) id = now(id);
      graph_.current_block = node.block;
      graph_.current_phase = node.phase;
      const auto* linear = dynamic_cast<const Linear*>(node.op.get());
      const auto found = linear == nullptr ? of_weight_.end() : of_weight_.find(node.inputs[1]);
      const ValueId x = node.inputs.empty() ? kNoValue : node.inputs[0];
      const ValueId y = node.outputs.empty() ? kNoValue : node.outputs[0];
      made_.push_back(std::move(node));
      if (found == of_weight_.end()) continue;
      check(linear->activation == Activation::kNone, "low-rank branches come before fusion");
      ValueId sum = y;
      for (const LowRankBranch* branch : found->second) sum = add_branch(*branch, x, sum);
      replaced_[y] = sum;
    }
    graph_.current_block = -1;
    graph_.current_phase = Phase::kForward;
    set_nodes(graph_, std::move(made_));
    for (ValueId& id : graph_.outputs) id = now(id);
    return std::move(replaced_);
  }

 private:
  ValueId now(ValueId id) const {
    const auto found = replaced_.find(id);
    return found == replaced_.end() ? id : found->second;
  }

  template <typename O>
  ValueId emit(O op, const std::vector<ValueId>& inputs, const char* name) {
    made_.push_back(graph_.make(std::make_shared<const O>(std::move(op)), inputs, {name}));
    return made_.back().outputs[0];
  }

  ValueId add_branch(const LowRankBranch& branch, ValueId x, ValueId y) {
    if (branch.dropout > 0) {
      check(options_.keys != nullptr, "a low-rank branch with dropout needs keys");
      const ValueId keys = options_.keys(graph_, graph_.spec(x).shape[0]);
      x = emit(Dropout{branch.dropout, options_.seed, branch.use}, {x, keys}, "lora_dropped");
    }
    ValueId hidden = emit(Linear{}, {x, branch.a}, "lora_a");
    // Scaled where it is narrow.
    if (branch.scale != 1) hidden = emit(Scale{branch.scale}, {hidden}, "lora_scaled");
    const ValueId change = emit(Linear{}, {hidden, branch.b}, "lora_b");
    if (graph_.spec(change) == graph_.spec(y)) return emit(Add{}, {y, change}, "adapted");
    return emit(AddColumns{branch.first_column}, {y, change}, "adapted");
  }

  Graph& graph_;
  const LowRankOptions& options_;
  std::map<ValueId, std::vector<const LowRankBranch*>> of_weight_;
  std::map<ValueId, ValueId> replaced_;
  std::vector<Node> made_;
};

}  // namespace

std::map<ValueId, ValueId> add_low_rank(Graph& graph, const std::vector<LowRankBranch>& branches,
                                        const LowRankOptions& options) {
  return Branching(graph, branches, options).run();
}

}  // namespace convoy
