#include "passes/differentiate.h"

#include "graph/ops/elementwise.h"

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

std::vector<ValueId> differentiate(Graph& graph, const DifferentiateOptions& options) {
  const std::size_t forward_values = graph.value_count();
  const std::size_t forward_nodes = graph.nodes().size();
  std::vector<bool> wanted = dependents(graph, options.wanted);
  std::vector<ValueId> gradients(forward_values, kNoValue);
  for (const auto& [value, seed] : options.seeds) gradients[static_cast<std::size_t>(value)] = seed;
  if (options.accumulate) {
    for (ValueId id : options.wanted) {
      const Value source = graph.value(id);
      gradients[static_cast<std::size_t>(id)] =
          graph.add_source(Role::kGradient, source.name, {accumulation_dtype(source.spec.dtype), source.spec.shape});
    }
  }

  graph.current_phase = Phase::kBackward;
  for (std::size_t n = forward_nodes; n-- > 0;) {
    const Node node = graph.nodes()[n];
    if (!has_gradient(node, gradients) || !any_wanted(node, wanted)) continue;
    graph.current_block = node.block;
    BackwardContext context(graph, node, gradients, wanted);
    node.op->backward(context);
  }

  graph.current_block = -1;
  std::vector<ValueId> result;
  for (ValueId id : options.wanted) {
    ValueId gradient = gradients[static_cast<std::size_t>(id)];
    const Value source = graph.value(id);
    if (gradient == kNoValue) {
      gradient = graph.add_op(Zeros{{accumulation_dtype(source.spec.dtype), source.spec.shape}}, {})[0];
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
