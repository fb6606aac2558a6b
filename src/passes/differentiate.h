// The backward pass: reverse-mode differentiation of the graph.
#pragma once

#include <utility>
#include <vector>

#include "graph/graph.h"

namespace convoy {

struct DifferentiateOptions {
  // Values and the gradients that they start from (values set by the host).
  std::vector<std::pair<ValueId, ValueId>> seeds;
  // Sources whose gradients are wanted: weights, or in tests any floating-point source.
  std::vector<ValueId> wanted;
  // Add into what the gradient buffers already hold, instead of setting them.
  bool accumulate = false;
  // Gradients of weights that only products read (Linear) have the weights' dtype. Others, of biases, norms and tables,
  // come of sums over tokens outside products: they are a small part and stay in accumulation_dtype.
  bool narrow_gradients = false;
};

// By source: whether its gradient has the source's own dtype, with narrow_gradients. Of a forward graph.
std::vector<bool> narrowed(const Graph& graph, const std::vector<ValueId>& sources);

// Appends the backward nodes and makes the wanted gradients outputs of the graph. Returns them, one per wanted source,
// as values of role gradient with the name of their source. A source that nothing depends on gets a gradient of zeros.
std::vector<ValueId> differentiate(Graph& graph, const DifferentiateOptions& options);

}  // namespace convoy
