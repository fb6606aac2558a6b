// Which activations are worth computing again: those that save the most bytes for a second of arithmetic first
// (compare Jain et al., "Checkmate", 2020; here greedy, block by block, on a roofline).
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace convoy {

// What the machine does in a second, roughly: only the ratios matter.
struct MachineRates {
  double product = 0;    // FLOP of matrix products
  double attention = 0;  // FLOP of attention
  double copy = 0;       // bytes, read and written
};

// Values of one block that are dropped together, beside those of the steps before.
struct RecomputeStep {
  int block = 0;
  std::vector<ValueId> dropped;
  double seconds = 0;  // of computing them again
  double bytes = 0;    // that need not be kept until the backward pass
};

// From a differentiated graph, the cheapest for its bytes first; the steps of one block in an order that builds on
// itself. All of them together keep little more than what crosses the blocks' borders.
std::vector<RecomputeStep> recompute_steps(const Graph& graph, const MachineRates& rates);

}  // namespace convoy
