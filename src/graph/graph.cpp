#include "graph/graph.h"

#include <fmt/format.h>

#include "graph/ops/elementwise.h"

namespace convoy {

std::string_view name_of(Role role) {
  switch (role) {
    case Role::kWeight:
      return "weights";
    case Role::kGradient:
      return "gradients";
    case Role::kMaster:
      return "master weights";
    case Role::kMoment:
      return "moments";
    case Role::kCache:
      return "key-value cache";
    case Role::kBatch:
      return "data";
    case Role::kActivation:
      return "activations";
    case Role::kHostActivation:
      return "host activations";
  }
  return "?";
}

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kUpdate:
      return "update";
  }
  return "?";
}

void Op::backward(BackwardContext& /*context*/) const {
  throw internal_error(fmt::format("{} has no backward rule", name()));
}

double traffic(Specs inputs, std::span<const TensorSpec> outputs) {
  double bytes = 0;
  for (const TensorSpec* spec : inputs) {
    if (spec != nullptr) bytes += static_cast<double>(spec->bytes());
  }
  for (const TensorSpec& spec : outputs) bytes += static_cast<double>(spec.bytes());
  return bytes;
}

Cost Op::cost(Specs inputs, std::span<const TensorSpec> outputs) const {
  return {0, traffic(inputs, outputs)};
}

ValueId Graph::add_source(Role role, std::string name, TensorSpec spec) {
  values_.push_back({std::move(name), spec, role, -1});
  return static_cast<ValueId>(values_.size() - 1);
}

Node Graph::make(std::shared_ptr<const Op> op, std::vector<ValueId> inputs, const std::vector<std::string>& names) {
  Node made{std::move(op), std::move(inputs), {}, current_block, current_phase};
  std::vector<TensorSpec> specs;
  try {
    specs = made.op->infer(input_specs(made));
  } catch (Error& error) {
    throw error.at(fmt::format("operation {} {}", made.op->name(), made.op->attributes()));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    std::string name = i < names.size() ? names[i] : std::string(made.op->name());
    values_.push_back({std::move(name), specs[i], Role::kActivation, static_cast<NodeId>(nodes_.size())});
    made.outputs.push_back(static_cast<ValueId>(values_.size() - 1));
  }
  for (const Alias& alias : made.op->aliases()) {
    // A value written into a persistent buffer is a new version of that buffer.
    if (!alias.must || static_cast<std::size_t>(alias.input) >= made.inputs.size()) continue;
    const ValueId source = made.inputs[static_cast<std::size_t>(alias.input)];
    if (source == kNoValue) continue;
    Value& target = value(made.outputs[static_cast<std::size_t>(alias.output)]);
    target.role = value(source).role;
    target.name = value(source).name;
  }
  return made;
}

std::vector<ValueId> Graph::add(std::shared_ptr<const Op> op, std::vector<ValueId> inputs,
                                const std::vector<std::string>& names) {
  nodes_.push_back(make(std::move(op), std::move(inputs), names));
  return nodes_.back().outputs;
}

void set_nodes(Graph& graph, std::vector<Node> nodes) {
  graph.nodes() = std::move(nodes);
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    for (ValueId id : graph.nodes()[n].outputs) graph.value(id).producer = static_cast<NodeId>(n);
  }
}

std::vector<const TensorSpec*> Graph::input_specs(const Node& node) const {
  std::vector<const TensorSpec*> specs;
  specs.reserve(node.inputs.size());
  for (ValueId id : node.inputs) specs.push_back(id == kNoValue ? nullptr : &spec(id));
  return specs;
}

std::vector<TensorSpec> Graph::output_specs(const Node& node) const {
  std::vector<TensorSpec> specs;
  for (ValueId id : node.outputs) specs.push_back(spec(id));
  return specs;
}

ValueId Graph::find(Role role, std::string_view name) const {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].role == role && values_[i].name == name) return static_cast<ValueId>(i);
  }
  return kNoValue;
}

void eliminate_dead_nodes(Graph& graph) {
  std::vector<bool> live_value(graph.value_count(), false);
  for (ValueId id : graph.outputs) live_value[static_cast<std::size_t>(id)] = true;
  std::vector<Node>& nodes = graph.nodes();
  std::vector<bool> live_node(nodes.size(), false);
  for (std::size_t n = nodes.size(); n-- > 0;) {
    for (ValueId id : nodes[n].outputs) live_node[n] = live_node[n] || live_value[static_cast<std::size_t>(id)];
    if (!live_node[n]) continue;
    for (ValueId id : nodes[n].inputs) {
      if (id != kNoValue) live_value[static_cast<std::size_t>(id)] = true;
    }
  }
  std::vector<Node> kept;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (!live_node[n]) continue;
    for (ValueId id : nodes[n].outputs) graph.value(id).producer = static_cast<NodeId>(kept.size());
    kept.push_back(std::move(nodes[n]));
  }
  nodes = std::move(kept);
}

ValueId BackwardContext::output_gradient(std::size_t i) const {
  return gradients_[static_cast<std::size_t>(node.outputs[i])];
}

bool BackwardContext::wants(std::size_t i) const {
  const ValueId id = input(i);
  return id != kNoValue && wanted_[static_cast<std::size_t>(id)];
}

ValueId BackwardContext::gradient_so_far(std::size_t i) const {
  return gradients_[static_cast<std::size_t>(input(i))];
}

void BackwardContext::set_gradient(std::size_t i, ValueId gradient) {
  gradients_[static_cast<std::size_t>(input(i))] = gradient;
}

void BackwardContext::add_gradient(std::size_t i, ValueId gradient) {
  const ValueId before = gradient_so_far(i);
  set_gradient(i, before == kNoValue ? gradient : graph.add_op(Add{}, {before, gradient}, {"gradient"})[0]);
}

void BackwardContext::set_weight_gradient(std::size_t i, ValueId gradient) {
  Value& made = graph.value(gradient);
  made.role = Role::kGradient;
  made.name = graph.value(input(i)).name;
  set_gradient(i, gradient);
}

}  // namespace convoy
