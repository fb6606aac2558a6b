#include "passes/differentiate.h"

#include "graph/ops/elementwise.h"
#include "graph/ops/linear.h"

namespace convoy {
namespace {

// Which values depend on a wanted source.
std::vector<bool> dependents(const Graph& graph, const std::vector<ValueId>& wanted) {
  std::vector<bool> depends(graph.value_count(), false);
  for (ValueId id : wanted) depends[static_cast<std::size_t>(id)] = true;
  for (const Node& node : graph.nodes()) {
    bool any = false;
    for (ValueId id : node.inputs) any = any || (id != kNoValue && depends[static_cast<std::size_t>(id)]);
    if (!any) continue;
    for (ValueId id : node.outputs) depends[static_cast<std::size_t>(id)] = true;
  }
  return depends;
}

bool has_gradient(const Node& node, const std::vector<ValueId>& gradients) {
  for (ValueId id : node.outputs) {
    if (gradients[static_cast<std::size_t>(id)] != kNoValue) return true;
  }
  return false;
}

bool any_wanted(const Node& node, const std::vector<bool>& wanted) {
  for (ValueId id : node.inputs) {
    if (id != kNoValue && wanted[static_cast<std::size_t>(id)]) return true;
  }
  return false;
}

}  // namespace

std::vector<bool> narrowed(const Graph& graph, const std::vector<ValueId>& sources) {
  std::vector<bool> products(graph.value_count(), false), others(graph.value_count(), false);
  for (const Node& node : graph.nodes()) {
    const bool product = dynamic_cast<const Linear*>(node.op.get()) != nullptr;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] != kNoValue)
        (product && i == 1 ? products : others)[static_cast<std::size_t>(node.inputs[i])] = true;
    }
  }
  std::vector<bool> result;
  for (ValueId id : sources)
    result.push_back(products[static_cast<std::size_t>(id)] && !others[static_cast<std::size_t>(id)]);
  return result;
}

std::vector<ValueId> differentiate(Graph& graph, const DifferentiateOptions& options) {
  const std::size_t forward_values = graph.value_count();
  const std::size_t forward_nodes = graph.nodes().size();
  std::vector<bool> wanted = dependents(graph, options.wanted);
  std::vector<ValueId> gradients(forward_values, kNoValue);
  for (const auto& [value, seed] : options.seeds) gradients[static_cast<std::size_t>(value)] = seed;
  std::vector<bool> narrow(forward_values, false);
  if (options.narrow_gradients) {
    const std::vector<bool> by_source = narrowed(graph, options.wanted);
    for (std::size_t i = 0; i < by_source.size(); ++i)
      narrow[static_cast<std::size_t>(options.wanted[i])] = by_source[i];
  }
  const auto gradient_spec = [&](ValueId id) {
    const TensorSpec own = graph.spec(id);
    return narrow[static_cast<std::size_t>(id)] ? own : TensorSpec{accumulation_dtype(own.dtype), own.shape};
  };
  if (options.accumulate) {
    for (ValueId id : options.wanted) {
      const std::string name = graph.value(id).name;
      gradients[static_cast<std::size_t>(id)] = graph.add_source(Role::kGradient, name, gradient_spec(id));
    }
  }

  graph.current_phase = Phase::kBackward;
  for (std::size_t n = forward_nodes; n-- > 0;) {
    const Node node = graph.nodes()[n];
    if (!has_gradient(node, gradients) || !any_wanted(node, wanted)) continue;
    graph.current_block = node.block;
    BackwardContext context(graph, node, gradients, wanted, narrow);
    node.op->backward(context);
  }

  graph.current_block = -1;
  std::vector<ValueId> result;
  for (ValueId id : options.wanted) {
    ValueId gradient = gradients[static_cast<std::size_t>(id)];
    const Value source = graph.value(id);
    if (gradient == kNoValue) {
      gradient = graph.add_op(Zeros{gradient_spec(id)}, {})[0];
    } else if (graph.value(gradient).role != Role::kGradient) {
      // A gradient that merely passed through may have other readers; the buffer gets a copy.
      gradient = graph.add_op(Scale{1.0}, {gradient})[0];
    }
    graph.value(gradient).role = Role::kGradient;
    graph.value(gradient).name = source.name;
    result.push_back(gradient);
    graph.outputs.push_back(gradient);
  }
  graph.current_phase = Phase::kForward;
  eliminate_dead_nodes(graph);
  return result;
}

}  // namespace convoy
