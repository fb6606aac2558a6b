// The order in which the nodes run.
#pragma once

#include "graph/graph.h"

namespace convoy {

// Reorders the nodes, keeping dependencies, to lower the largest live set: a greedy order that prefers nodes that free
// memory, taken only where it is better than the order the graph was built in.
void order(Graph& graph);

}  // namespace convoy
