// Low-rank branches beside products with weights (LoRA; Hu et al., "LoRA: Low-Rank Adaptation of Large Language
// Models", 2021).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "graph/graph.h"

namespace convoy {

// y[:, first_column …] += scale · dropout(x)·Aᵀ·Bᵀ beside every y = x·Wᵀ.
struct LowRankBranch {
  ValueId weight = kNoValue;  // W, a source
  ValueId a = kNoValue;       // [r, in]
  ValueId b = kNoValue;       // [columns, r]; as many output columns as it has rows
  std::int64_t first_column = 0;
  double scale = 1;
  float dropout = 0;      // 0 also where nothing is trained
  std::uint32_t use = 0;  // the dropout's use of the random numbers
};

struct LowRankOptions {
  std::uint64_t seed = 0;  // of dropout
  // The keys of so many rows' random numbers, i64[rows]; needed by branches with dropout.
  std::function<ValueId(Graph& graph, std::int64_t rows)> keys;
};

// Adds the branches to the forward graph, before differentiation. Returns what took the place of the products' results
// that others read (the graph's outputs are replaced already).
std::map<ValueId, ValueId> add_low_rank(Graph& graph, const std::vector<LowRankBranch>& branches,
                                        const LowRankOptions& options);

}  // namespace convoy
