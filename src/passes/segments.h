// An ordered graph as runs of nodes of one transformer block: what communication and copies are placed by.
#pragma once

#include <cstddef>
#include <vector>

#include "graph/graph.h"

namespace convoy {

// Nodes [begin, end), all of one block.
struct Segment {
  std::size_t begin, end;
};

std::vector<Segment> cut_segments(const Graph& graph);

}  // namespace convoy
