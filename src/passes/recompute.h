// Activation recomputation (activation checkpointing; Chen et al., "Training Deep Nets with Sublinear Memory Cost",
// 2016).
#pragma once

#include "graph/graph.h"
#include "passes/recompute_choice.h"

namespace convoy {

enum class RecomputeMode : std::uint8_t {
  kNone,       // keep what the backward pass needs
  kSelective,  // compute cheap operations again where their inputs are kept anyway
  kFull,       // keep only what crosses a block's border; run the block's forward pass again before its backward pass
  kFit,        // the first so many steps of passes/recompute_choice.h
};

std::string_view name_of(RecomputeMode mode);

struct RecomputeOptions {
  RecomputeMode mode = RecomputeMode::kNone;
  std::int64_t steps = 0;   // of kFit
  MachineRates rates = {};  // likewise
};

// Replaces the backward nodes' uses of dropped activations by recomputed ones. Run after differentiate.
void recompute(Graph& graph, const RecomputeOptions& options);

}  // namespace convoy
