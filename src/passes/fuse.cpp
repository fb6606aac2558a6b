#include "passes/fuse.h"

#include "graph/ops/activation.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/linear.h"
#include "graph/ops/norm.h"

namespace convoy {
namespace {

std::vector<int> count_uses(const Graph& graph) {
  std::vector<int> uses(graph.value_count(), 0);
  for (const Node& node : graph.nodes()) {
    for (ValueId id : node.inputs) {
      if (id != kNoValue) ++uses[static_cast<std::size_t>(id)];
    }
  }
  for (ValueId id : graph.outputs) ++uses[static_cast<std::size_t>(id)];
  return uses;
}

// The node that makes `id`, if it is an O of the same phase and block as `user`, earlier in the list.
template <typename O>
Node* maker(Graph& graph, ValueId id, const Node& user) {
  const NodeId producer = graph.value(id).producer;
  if (producer < 0) return nullptr;
  Node& node = graph.node(producer);
  if (node.phase != user.phase || dynamic_cast<const O*>(node.op.get()) == nullptr) return nullptr;
  return &node;
}

// Every input of `node` other than `except` exists where `earlier` stands, so `node` can move there.
bool can_move_up(const Graph& graph, const Node& node, ValueId except, NodeId earlier) {
  for (ValueId id : node.inputs) {
    if (id != kNoValue && id != except && graph.value(id).producer >= earlier) return false;
  }
  return true;
}

// Turns `add` into the fused norm; `norm` is emptied. The sum stays a value of its own, the norm's last output.
void fuse_norm(Node& add, Node& norm, std::size_t residual) {
  norm.inputs.resize(residual + 1, kNoValue);
  norm.inputs[0] = add.inputs[0];
  norm.inputs[residual] = add.inputs[1];
  norm.outputs.push_back(add.outputs[0]);
  add.op = norm.op;
  add.inputs = std::move(norm.inputs);
  add.outputs = std::move(norm.outputs);
  norm = Node{};
}

void fuse_activation(Node& linear, Node& gelu, bool keep) {
  const auto& product = static_cast<const Linear&>(*linear.op);
  const bool tanh = static_cast<const Gelu&>(*gelu.op).tanh;
  linear.op =
      std::make_shared<const Linear>(product.transposed, tanh ? Activation::kGeluTanh : Activation::kGeluErf, keep);
  const ValueId before = linear.outputs[0];
  linear.outputs = {gelu.outputs[0]};
  if (keep) linear.outputs.push_back(before);
  gelu = Node{};
}

}  // namespace

void fuse(Graph& graph) {
  const std::vector<int> uses = count_uses(graph);
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.nodes()[n];
    if (node.op == nullptr) continue;
    const bool rms = dynamic_cast<const RmsNorm*>(node.op.get()) != nullptr;
    const bool layer = dynamic_cast<const LayerNorm*>(node.op.get()) != nullptr;
    const std::size_t residual = rms ? 2 : 3;
    if ((rms || layer) && (node.inputs.size() <= residual || node.inputs[residual] == kNoValue)) {
      Node* add = maker<Add>(graph, node.inputs[0], node);
      const NodeId place = graph.value(node.inputs[0]).producer;
      if (add != nullptr && can_move_up(graph, node, node.inputs[0], place)) {
        fuse_norm(*add, node, residual);
        for (ValueId id : add->outputs) graph.value(id).producer = place;
      }
    } else if (dynamic_cast<const Gelu*>(node.op.get()) != nullptr) {
      const ValueId before = node.inputs[0];
      Node* linear = maker<Linear>(graph, before, node);
      const NodeId place = graph.value(before).producer;
      if (linear != nullptr && static_cast<const Linear&>(*linear->op).activation == Activation::kNone) {
        fuse_activation(*linear, node, uses[static_cast<std::size_t>(before)] > 1);
        for (ValueId id : linear->outputs) graph.value(id).producer = place;
      }
    }
  }
  std::vector<Node> kept;
  for (Node& node : graph.nodes()) {
    if (node.op == nullptr) continue;
    for (ValueId id : node.outputs) graph.value(id).producer = static_cast<NodeId>(kept.size());
    kept.push_back(std::move(node));
  }
  graph.nodes() = std::move(kept);
}

}  // namespace convoy
