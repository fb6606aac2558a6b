// Merges neighbours that one kernel does in one pass over memory.
#pragma once

#include "graph/graph.h"

namespace convoy {

// add → norm becomes a norm with a residual; linear → gelu becomes a linear with an activation; 8-bit codes of a tensor
// and their transpose are made together. Results stay equal up
// to the rounding of 16-bit intermediates that are no longer stored. Run after recompute.
void fuse(Graph& graph);

}  // namespace convoy
