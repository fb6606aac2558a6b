// Activations in host memory between the forward and the backward pass (Rhu et al., "vDNN", 2016).
#pragma once

#include <cstddef>

#include "graph/graph.h"

namespace convoy {

struct OffloadOptions {
  bool borders_only = false;                       // only what crosses the blocks' borders: the rest is recomputed
  std::size_t least_bytes = std::size_t{1} << 20;  // smaller tensors stay on the device
};

// On an ordered graph with its backward pass: what the backward pass reads late goes to host memory as soon as it is
// there, beside the computation, and comes back one block ahead of its first use. Its memory on the device is free
// after the block that used it last, but not before the copy had a whole block of time. What would not be away for
// at least a block stays.
void offload_activations(Graph& graph, const OffloadOptions& options);

}  // namespace convoy
