#include "passes/segments.h"

namespace convoy {

std::vector<Segment> cut_segments(const Graph& graph) {
  const std::vector<Node>& nodes = graph.nodes();
  std::vector<Segment> segments;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (n == 0 || nodes[n].block != nodes[n - 1].block) segments.push_back({n, n});
    segments.back().end = n + 1;
  }
  return segments;
}

}  // namespace convoy
