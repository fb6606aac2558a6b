#include "passes/recompute.h"

#include <algorithm>

namespace convoy {
namespace {

class Recomputation {
 public:
  Recomputation(Graph& graph, const RecomputeOptions& options) : graph_(graph), options_(options) {}

  void run() {
    if (options_.mode == RecomputeMode::kFit) {
      take_steps();
    } else {
      find_saved();
      choose_dropped();
    }
    rewrite();
  }

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id); }
  bool is_forward_activation(ValueId id) const {
    const Value& value = graph_.value(id);
    return value.role == Role::kActivation && value.producer >= 0 &&
           graph_.node(value.producer).phase == Phase::kForward;
  }

  // What the forward pass computes and the backward pass reads.
  void find_saved() {
    saved_.assign(graph_.value_count(), false);
    crosses_block_.assign(graph_.value_count(), false);
    for (const Node& node : graph_.nodes()) {
      for (ValueId id : node.inputs) {
        if (id == kNoValue || !is_forward_activation(id)) continue;
        if (node.phase == Phase::kBackward) saved_[at(id)] = true;
        if (node.phase == Phase::kForward && graph_.node(graph_.value(id).producer).block != node.block)
          crosses_block_[at(id)] = true;
      }
    }
    for (ValueId id : graph_.outputs) crosses_block_[at(id)] = true;
  }

  void take_steps() {
    dropped_.assign(graph_.value_count(), false);
    const std::vector<RecomputeStep> steps = recompute_steps(graph_, options_.rates);
    const auto taken = std::min(static_cast<std::size_t>(options_.steps), steps.size());
    for (std::size_t s = 0; s < taken; ++s) {
      for (ValueId id : steps[s].dropped) dropped_[at(id)] = true;
    }
  }

  void choose_dropped() {
    dropped_.assign(graph_.value_count(), false);
    available_.assign(graph_.value_count(), true);  // sources are
    for (const Node& node : graph_.nodes()) {
      if (node.phase != Phase::kForward) continue;
      const bool inputs_there = std::all_of(node.inputs.begin(), node.inputs.end(),
                                            [&](ValueId id) { return id == kNoValue || available_[at(id)]; });
      for (ValueId id : node.outputs) {
        // A single number, as the scale of 8-bit codes, takes no room worth finding it again.
        const bool whole = node.block >= 0 && !crosses_block_[at(id)] && graph_.spec(id).numel() > 1;
        const bool again = options_.mode == RecomputeMode::kFull ? whole : node.op->cheap() && inputs_there;
        dropped_[at(id)] = again;
        available_[at(id)] = again || saved_[at(id)] || (options_.mode == RecomputeMode::kFull);
      }
    }
  }

  // The value that backward nodes read instead of `id`; recomputes it, once, just before its first use.
  ValueId restored(ValueId id) {
    if (id == kNoValue || static_cast<std::size_t>(id) >= dropped_.size() || !dropped_[at(id)]) return id;
    if (copies_[at(id)] != kNoValue) return copies_[at(id)];
    const Node original = graph_.node(graph_.value(id).producer);
    std::vector<ValueId> inputs;
    for (ValueId input : original.inputs) inputs.push_back(restored(input));
    graph_.current_block = original.block;
    graph_.current_phase = Phase::kRecompute;
    const std::vector<ValueId> made = graph_.add(original.op, std::move(inputs));
    order_.push_back(static_cast<NodeId>(graph_.nodes().size() - 1));
    for (std::size_t i = 0; i < made.size(); ++i) {
      graph_.value(made[i]).name = graph_.value(original.outputs[i]).name;
      copies_[at(original.outputs[i])] = made[i];
    }
    return copies_[at(id)];
  }

  void rewrite() {
    copies_.assign(graph_.value_count(), kNoValue);
    const auto count = static_cast<NodeId>(graph_.nodes().size());
    for (NodeId n = 0; n < count; ++n) {
      if (graph_.node(n).phase == Phase::kBackward) {
        for (std::size_t i = 0; i < graph_.node(n).inputs.size(); ++i) {
          const ValueId replacement = restored(graph_.node(n).inputs[i]);
          graph_.node(n).inputs[i] = replacement;
        }
      }
      order_.push_back(n);
    }
    std::vector<Node> nodes;
    for (NodeId n : order_) {
      for (ValueId id : graph_.node(n).outputs) graph_.value(id).producer = static_cast<NodeId>(nodes.size());
      nodes.push_back(graph_.node(n));
    }
    graph_.nodes() = std::move(nodes);
    graph_.current_block = -1;
    graph_.current_phase = Phase::kForward;
  }

  Graph& graph_;
  const RecomputeOptions& options_;
  std::vector<bool> saved_, crosses_block_, dropped_, available_;  // by value
  std::vector<ValueId> copies_;                                    // by value
  std::vector<NodeId> order_;
};

}  // namespace

std::string_view name_of(RecomputeMode mode) {
  switch (mode) {
    case RecomputeMode::kNone:
      return "none";
    case RecomputeMode::kSelective:
      return "selective";
    case RecomputeMode::kFull:
      return "full";
    case RecomputeMode::kFit:
      return "fit";
  }
  return "?";
}

void recompute(Graph& graph, const RecomputeOptions& options) {
  const bool nothing =
      options.mode == RecomputeMode::kNone || (options.mode == RecomputeMode::kFit && options.steps == 0);
  if (!nothing) Recomputation(graph, options).run();
  eliminate_dead_nodes(graph);
}

}  // namespace convoy
