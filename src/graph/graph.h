// The model graph: values and the operations between them, in static single assignment.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/op.h"

namespace convoy {

// What a value is, which decides the arena that it lives in.
enum class Role : std::uint8_t {
  kWeight,          // the parameters that the forward pass reads
  kGradient,        // weight gradients
  kMaster,          // float32 copies of 16-bit weights, which the optimizer updates
  kMoment,          // optimizer state
  kCache,           // keys and values of the text so far, in generation
  kBatch,           // what the loader writes for a micro-batch, and tables and scalars that the host sets
  kActivation,      // everything that lives inside one program
  kHostActivation,  // what of that waits in host memory for the backward pass
};
inline constexpr int kRoleCount = 8;
std::string_view name_of(Role role);

struct Value {
  std::string name;  // for persistent roles the name of its storage; else for printing
  TensorSpec spec;
  Role role = Role::kActivation;
  NodeId producer = -1;
};

enum class Phase : std::uint8_t { kForward, kBackward, kRecompute, kUpdate };
std::string_view name_of(Phase phase);

struct Node {
  std::shared_ptr<const Op> op;
  std::vector<ValueId> inputs;  // kNoValue for an absent optional input
  std::vector<ValueId> outputs;
  int block = -1;  // the transformer block it belongs to, -1 outside
  Phase phase = Phase::kForward;
};

class Graph {
 public:
  // A value that no node produces: a weight, a gradient buffer, optimizer state, or what the host sets.
  ValueId add_source(Role role, std::string name, TensorSpec spec);
  // A node that is not in the list yet (see set_nodes), with its output values.
  Node make(std::shared_ptr<const Op> op, std::vector<ValueId> inputs, const std::vector<std::string>& names = {});
  // Adds a node; the outputs' specifications follow from the shape rule. `names` are for printing.
  std::vector<ValueId> add(std::shared_ptr<const Op> op, std::vector<ValueId> inputs,
                           const std::vector<std::string>& names = {});
  template <typename O>
  std::vector<ValueId> add_op(O op, const std::vector<ValueId>& inputs, const std::vector<std::string>& names = {}) {
    return add(std::make_shared<const O>(std::move(op)), inputs, names);
  }

  Value& value(ValueId id) { return values_[static_cast<std::size_t>(id)]; }
  const Value& value(ValueId id) const { return values_[static_cast<std::size_t>(id)]; }
  Node& node(NodeId id) { return nodes_[static_cast<std::size_t>(id)]; }
  const Node& node(NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  std::vector<Node>& nodes() { return nodes_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  std::size_t value_count() const { return values_.size(); }
  const TensorSpec& spec(ValueId id) const { return value(id).spec; }
  // Null for kNoValue.
  std::vector<const TensorSpec*> input_specs(const Node& node) const;
  std::vector<TensorSpec> output_specs(const Node& node) const;
  // The value of that role and name, or kNoValue.
  ValueId find(Role role, std::string_view name) const;

  // Values that must survive the program (statistics, logits, gradients). Their storage is never reused.
  std::vector<ValueId> outputs;
  // Block and phase given to nodes added from now on.
  int current_block = -1;
  Phase current_phase = Phase::kForward;

 private:
  std::vector<Value> values_;
  std::vector<Node> nodes_;
};

// Replaces the list of nodes by another one over the same values.
void set_nodes(Graph& graph, std::vector<Node> nodes);

// Removes the nodes that no output depends on. Values keep their ids.
void eliminate_dead_nodes(Graph& graph);

// What a backward rule sees: the node, the gradients of its outputs, and where the gradients of its inputs go.
class BackwardContext {
 public:
  // `gradients`, `wanted` and `narrow` (whether a weight's gradient has the weight's dtype) are indexed by the values
  // of the forward pass.
  BackwardContext(Graph& target_graph, const Node& forward_node, std::vector<ValueId>& gradients,
                  const std::vector<bool>& wanted, const std::vector<bool>& narrow)
      : graph(target_graph), node(forward_node), gradients_(gradients), wanted_(wanted), narrow_(narrow) {}

  ValueId input(std::size_t i) const { return i < node.inputs.size() ? node.inputs[i] : kNoValue; }
  ValueId output(std::size_t i) const { return node.outputs[i]; }
  // The gradient of output i, or kNoValue if nothing depends on it.
  ValueId output_gradient(std::size_t i) const;
  // Whether anything wants the gradient of input i.
  bool wants(std::size_t i) const;
  // Whether the gradient of weight input i has the weight's dtype (see passes/differentiate.h).
  bool narrow_gradient(std::size_t i) const { return narrow_[static_cast<std::size_t>(input(i))]; }
  // The gradient that other users of input i have given so far, to be added into by a fused operation; or kNoValue.
  ValueId gradient_so_far(std::size_t i) const;
  // Replaces it: `gradient` already includes gradient_so_far(i).
  void set_gradient(std::size_t i, ValueId gradient);
  // Adds `gradient` to what there is.
  void add_gradient(std::size_t i, ValueId gradient);
  // Marks values as the gradient buffers of weight inputs: same name as the weight.
  void set_weight_gradient(std::size_t i, ValueId gradient);

  Graph& graph;
  const Node node;  // a copy: the graph's node list grows under the rule

 private:
  std::vector<ValueId>& gradients_;
  const std::vector<bool>& wanted_;
  const std::vector<bool>& narrow_;
};

}  // namespace convoy
