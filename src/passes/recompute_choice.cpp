#include "passes/recompute_choice.h"

#include <algorithm>
#include <map>

#include "graph/ops/attention.h"
#include "graph/ops/cross_attention.h"

namespace convoy {
namespace {

double seconds_of(const Graph& graph, const Node& node, const MachineRates& rates) {
  const auto outputs = graph.output_specs(node);
  const Cost cost = node.op->cost(graph.input_specs(node), outputs);
  const bool attends = dynamic_cast<const Attention*>(node.op.get()) != nullptr ||
                       dynamic_cast<const CrossAttention*>(node.op.get()) != nullptr;
  return std::max(cost.flops / (attends ? rates.attention : rates.product), cost.bytes / rates.copy);
}

// The forward pass of one block, by places in it.
class Block {
 public:
  Block(const Graph& graph, const std::vector<NodeId>& nodes, const std::vector<bool>& read_later,
        const std::vector<bool>& fixed, const MachineRates& rates) {
    std::map<ValueId, int> place;
    const auto value = [&](ValueId id, bool inside) {
      const auto [found, fresh] = place.emplace(id, static_cast<int>(values_.size()));
      if (fresh) {
        const auto at = static_cast<std::size_t>(id);
        values_.push_back(
            {id, static_cast<double>(graph.spec(id).bytes()), static_cast<bool>(read_later[at]), inside && !fixed[at]});
      }
      return found->second;
    };
    for (const NodeId n : nodes) {
      const Node& node = graph.node(n);
      Work work;
      work.seconds = seconds_of(graph, node, rates);
      for (const ValueId id : node.inputs) {
        if (id == kNoValue || graph.value(id).role != Role::kActivation || graph.value(id).producer < 0) continue;
        work.inputs.push_back(value(id, false));
      }
      for (const ValueId id : node.outputs) work.outputs.push_back(value(id, graph.spec(id).numel() > 1));
      work_.push_back(std::move(work));
    }
  }

  std::vector<RecomputeStep> steps(int number) const {
    std::vector<RecomputeStep> all;
    std::vector<bool> dropped(values_.size(), false);
    Kept now = keep(dropped);
    for (;;) {
      std::vector<bool> best;
      Kept best_kept;
      for (std::size_t v = 0; v < values_.size(); ++v) {
        if (!values_[v].droppable || !now.kept[v]) continue;
        for (const bool with_inputs : {false, true}) {
          std::vector<bool> tried = dropped;
          tried[v] = true;
          Kept kept = keep(tried);
          if (with_inputs && !drop_new(now, tried, kept)) continue;
          if (kept.bytes >= now.bytes) continue;
          if (best.empty() || rate(now, kept) < rate(now, best_kept)) {
            best = std::move(tried);
            best_kept = std::move(kept);
          }
        }
      }
      if (best.empty()) break;
      RecomputeStep step{number, {}, best_kept.seconds - now.seconds, now.bytes - best_kept.bytes};
      for (std::size_t v = 0; v < values_.size(); ++v) {
        if (best[v] && !dropped[v]) step.dropped.push_back(values_[v].id);
      }
      // A step that comes cheaper than the one before it is taken with it.
      while (!all.empty() && step.seconds * all.back().bytes <= all.back().seconds * step.bytes) {
        step.seconds += all.back().seconds;
        step.bytes += all.back().bytes;
        step.dropped.insert(step.dropped.end(), all.back().dropped.begin(), all.back().dropped.end());
        all.pop_back();
      }
      all.push_back(std::move(step));
      dropped = std::move(best);
      now = std::move(best_kept);
    }
    return all;
  }

 private:
  struct OneValue {
    ValueId id;
    double bytes;
    bool read_later;  // by the backward pass
    bool droppable;
  };
  struct Work {
    std::vector<int> inputs, outputs;
    double seconds = 0;
  };
  struct Kept {
    std::vector<bool> kept;
    double bytes = 0, seconds = 0;
  };

  static double rate(const Kept& now, const Kept& then) {
    return (then.seconds - now.seconds) / (now.bytes - then.bytes);
  }

  // What has to be kept, and computed again, when `dropped` is not there after the forward pass.
  Kept keep(const std::vector<bool>& dropped) const {
    Kept result;
    std::vector<bool> wanted(values_.size());
    for (std::size_t v = 0; v < values_.size(); ++v) wanted[v] = values_[v].read_later;
    for (std::size_t w = work_.size(); w-- > 0;) {
      const Work& work = work_[w];
      const bool again = std::any_of(work.outputs.begin(), work.outputs.end(), [&](int v) {
        const auto at = static_cast<std::size_t>(v);
        return wanted[at] && dropped[at];
      });
      if (!again) continue;
      result.seconds += work.seconds;
      for (const int v : work.inputs) wanted[static_cast<std::size_t>(v)] = true;
    }
    result.kept.assign(values_.size(), false);
    for (std::size_t v = 0; v < values_.size(); ++v) {
      result.kept[v] = wanted[v] && !dropped[v];
      if (result.kept[v]) result.bytes += values_[v].bytes;
    }
    return result;
  }

  // Drops too what would be kept only for computing the others again. False where there is nothing of that kind.
  bool drop_new(const Kept& now, std::vector<bool>& tried, Kept& kept) const {
    bool any = false;
    for (bool more = true; more;) {
      more = false;
      for (std::size_t v = 0; v < values_.size(); ++v) {
        if (!kept.kept[v] || now.kept[v] || !values_[v].droppable) continue;
        tried[v] = more = any = true;
      }
      if (more) kept = keep(tried);
    }
    return any;
  }

  std::vector<OneValue> values_;
  std::vector<Work> work_;
};

}  // namespace

std::vector<RecomputeStep> recompute_steps(const Graph& graph, const MachineRates& rates) {
  std::vector<bool> read_later(graph.value_count(), false), fixed(graph.value_count(), false);
  std::map<int, std::vector<NodeId>> blocks;
  const auto count = static_cast<NodeId>(graph.nodes().size());
  for (NodeId n = 0; n < count; ++n) {
    const Node& node = graph.node(n);
    if (node.phase == Phase::kForward && node.block >= 0) blocks[node.block].push_back(n);
    for (const ValueId id : node.inputs) {
      if (id == kNoValue || graph.value(id).producer < 0) continue;
      if (node.phase == Phase::kBackward) read_later[static_cast<std::size_t>(id)] = true;
      if (node.phase == Phase::kForward && graph.node(graph.value(id).producer).block != node.block)
        fixed[static_cast<std::size_t>(id)] = true;
    }
  }
  for (const ValueId id : graph.outputs) fixed[static_cast<std::size_t>(id)] = true;
  std::vector<RecomputeStep> steps;
  for (const auto& [number, nodes] : blocks) {
    std::vector<RecomputeStep> of_block = Block(graph, nodes, read_later, fixed, rates).steps(number);
    std::move(of_block.begin(), of_block.end(), std::back_inserter(steps));
  }
  std::stable_sort(steps.begin(), steps.end(), [](const RecomputeStep& a, const RecomputeStep& b) {
    return a.seconds * b.bytes < b.seconds * a.bytes;
  });
  return steps;
}

}  // namespace convoy
