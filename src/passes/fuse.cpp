#include "passes/fuse.h"

#include <map>
#include <tuple>

#include "graph/ops/activation.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/fp8.h"
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

// The product with the activation, or null where it has one already or is a gradient.
std::shared_ptr<const Op> with_activation(const Op& op, Activation activation, bool keep) {
  if (const auto* product = dynamic_cast<const Linear*>(&op);
      product != nullptr && product->activation == Activation::kNone)
    return std::make_shared<const Linear>(product->transposed, activation, keep);
  if (const auto* product = dynamic_cast<const Fp8Product*>(&op);
      product != nullptr && product->kind == Fp8Product::Kind::kForward && product->activation == Activation::kNone)
    return std::make_shared<const Fp8Product>(product->kind, activation, keep);
  return nullptr;
}

void fuse_activation(Node& linear, Node& gelu, bool keep) {
  const bool tanh = static_cast<const Gelu&>(*gelu.op).tanh;
  const auto fused = with_activation(*linear.op, tanh ? Activation::kGeluTanh : Activation::kGeluErf, keep);
  if (fused == nullptr) return;
  linear.op = fused;
  const ValueId before = linear.outputs[0];
  linear.outputs = {gelu.outputs[0]};
  if (keep) linear.outputs.push_back(before);
  gelu = Node{};
}

// Codes of one tensor and their transpose are made in one go, where the first of them was.
void fuse_codes(Graph& graph) {
  std::map<std::tuple<ValueId, ValueId, Phase, int>, NodeId> alone;
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.nodes()[n];
    const auto* op = dynamic_cast<const Fp8Quantize*>(node.op.get());
    if (op == nullptr || op->keep == Fp8Quantize::Keep::kBoth) continue;
    const auto [place, fresh] =
        alone.try_emplace({node.inputs[0], node.inputs[1], node.phase, node.block}, static_cast<NodeId>(n));
    if (fresh) continue;
    Node& first = graph.node(place->second);
    if (static_cast<const Fp8Quantize&>(*first.op).keep == op->keep) continue;
    const ValueId other = node.outputs[0];
    first.outputs.insert(op->keeps_rows() ? first.outputs.begin() : first.outputs.end(), other);
    first.op = std::make_shared<const Fp8Quantize>(op->to, Fp8Quantize::Keep::kBoth);
    graph.value(other).producer = place->second;
    alone.erase(place);
    node = Node{};
  }
}

}  // namespace

void fuse(Graph& graph) {
  fuse_codes(graph);
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
      if (linear == nullptr) linear = maker<Fp8Product>(graph, before, node);
      const NodeId place = graph.value(before).producer;
      if (linear != nullptr) {
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
