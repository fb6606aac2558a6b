// Products with weights in 8 bits (Micikevicius et al., "FP8 Formats for Deep Learning", 2022): E4M3 for weights and
// activations, E5M2 for gradients, one scale for each tensor, found from its own values.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace convoy {

// A product that stays in the run's dtype although its weight was among those asked for.
struct LeftProduct {
  std::string weight;
  std::string why;  // "its 100 rows are no multiple of 16"
};

// Rewrites every product with one of `weights` inside a transformer block, and the products of its gradients, where
// their rows and columns are multiples of 16; returns those left, in the graph's order. The graph computes in bf16.
//
// Each factor becomes a scale and codes (graph/ops/fp8.h). The backward pass keeps a product's input as transposed
// codes instead of bf16, unless something else there reads it in bf16 anyway: then the codes are made again. A weight's
// codes are made for each use. Run after differentiate and before recompute.
std::vector<LeftProduct> quantize_products(Graph& graph, const std::vector<ValueId>& weights);

}  // namespace convoy
