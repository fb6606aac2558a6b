#include "passes/order.h"

#include <algorithm>
#include <set>

#include "passes/lifetimes.h"

namespace convoy {
namespace {

// Which nodes must run before which: producers before users, and readers of a persistent buffer before the node that
// writes its next version.
struct Dependencies {
  std::vector<std::vector<NodeId>> users;
  std::vector<int> waiting;  // unfinished predecessors
};

Dependencies dependencies(const Graph& graph) {
  const std::size_t count = graph.nodes().size();
  Dependencies made{std::vector<std::vector<NodeId>>(count), std::vector<int>(count, 0)};
  const auto before = [&](NodeId first, NodeId second) {
    if (first == second || first < 0) return;
    made.users[static_cast<std::size_t>(first)].push_back(second);
    ++made.waiting[static_cast<std::size_t>(second)];
  };
  std::vector<std::vector<NodeId>> readers(graph.value_count());
  for (NodeId n = 0; n < static_cast<NodeId>(count); ++n) {
    for (ValueId id : graph.node(n).inputs) {
      if (id == kNoValue) continue;
      before(graph.value(id).producer, n);
      readers[static_cast<std::size_t>(id)].push_back(n);
    }
  }
  for (NodeId n = 0; n < static_cast<NodeId>(count); ++n) {
    for (const Alias& alias : graph.node(n).op->aliases()) {
      if (!alias.must || static_cast<std::size_t>(alias.input) >= graph.node(n).inputs.size()) continue;
      const ValueId overwritten = graph.node(n).inputs[static_cast<std::size_t>(alias.input)];
      if (overwritten == kNoValue) continue;
      for (NodeId reader : readers[static_cast<std::size_t>(overwritten)]) before(reader, n);
    }
  }
  return made;
}

std::vector<NodeId> greedy(const Graph& graph) {
  Dependencies left = dependencies(graph);
  std::vector<int> uses(graph.value_count(), 0);
  for (const Node& node : graph.nodes()) {
    for (ValueId id : node.inputs) {
      if (id != kNoValue) ++uses[static_cast<std::size_t>(id)];
    }
  }
  for (ValueId id : graph.outputs) ++uses[static_cast<std::size_t>(id)];
  const auto is_activation = [&](ValueId id) {
    return graph.value(id).role == Role::kActivation && graph.value(id).producer >= 0;
  };
  const auto growth = [&](NodeId n) {
    std::ptrdiff_t bytes = 0;
    for (ValueId id : graph.node(n).outputs) {
      if (is_activation(id)) bytes += static_cast<std::ptrdiff_t>(graph.spec(id).bytes());
    }
    for (ValueId id : graph.node(n).inputs) {
      if (id != kNoValue && is_activation(id) && uses[static_cast<std::size_t>(id)] == 1)
        bytes -= static_cast<std::ptrdiff_t>(graph.spec(id).bytes());
    }
    return bytes;
  };
  std::set<NodeId> ready;
  for (NodeId n = 0; n < static_cast<NodeId>(left.waiting.size()); ++n) {
    if (left.waiting[static_cast<std::size_t>(n)] == 0) ready.insert(n);
  }
  std::vector<NodeId> result;
  while (!ready.empty()) {
    NodeId chosen = *ready.begin();
    std::ptrdiff_t least = growth(chosen);
    for (NodeId n : ready) {
      const std::ptrdiff_t bytes = growth(n);
      if (bytes < std::min<std::ptrdiff_t>(least, 1)) {  // run early what frees memory; else keep the built order
        least = bytes;
        chosen = n;
      }
    }
    ready.erase(chosen);
    result.push_back(chosen);
    for (ValueId id : graph.node(chosen).inputs) {
      if (id != kNoValue) --uses[static_cast<std::size_t>(id)];
    }
    for (NodeId user : left.users[static_cast<std::size_t>(chosen)]) {
      if (--left.waiting[static_cast<std::size_t>(user)] == 0) ready.insert(user);
    }
  }
  check(result.size() == graph.nodes().size(), "the graph has a cycle");
  return result;
}

void reorder(Graph& graph, const std::vector<NodeId>& sequence) {
  std::vector<Node> nodes;
  nodes.reserve(sequence.size());
  for (NodeId n : sequence) nodes.push_back(graph.node(n));
  set_nodes(graph, std::move(nodes));
}

}  // namespace

void order(Graph& graph) {
  const std::size_t count = graph.nodes().size();
  const std::size_t built = largest_live_set(lifetimes(graph), count);
  Graph other = graph;
  reorder(other, greedy(graph));
  if (largest_live_set(lifetimes(other), count) < built) graph = std::move(other);
}

}  // namespace convoy
