// When each buffer of a program is alive, given the order of the nodes.
#pragma once

#include <cstddef>
#include <vector>

#include "graph/graph.h"

namespace convoy {

// One buffer of an arena of activations: the values that share it and the nodes (inclusive) between which it is in use.
struct Buffer {
  std::size_t bytes = 0;
  std::int32_t first = 0;
  std::int32_t last = 0;
  std::vector<ValueId> values;
};

struct Lifetimes {
  std::vector<Buffer> buffers;
  std::vector<std::int32_t> buffer_of;  // by value; -1 for values of other roles and dead values
};

inline constexpr std::size_t kAlignment = 64;
inline std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Follows the operations' aliases: an output takes an input's buffer where the operation allows it and the input is not
// needed afterwards. Outputs of the graph live to the end. Of one arena: kActivation or kHostActivation.
Lifetimes lifetimes(const Graph& graph, Role role = Role::kActivation);

// The largest sum of buffers alive at one node: no placement can be smaller.
std::size_t largest_live_set(const Lifetimes& lifetimes, std::size_t node_count);

}  // namespace convoy
