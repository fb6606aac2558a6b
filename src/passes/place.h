// Offline placement of a program's buffers in one arena (dynamic storage allocation).
#pragma once

#include "passes/lifetimes.h"

namespace convoy {

struct Placement {
  std::vector<std::size_t> offsets;  // by buffer
  std::size_t bytes = 0;             // size of the arena
  std::size_t lower_bound = 0;       // the largest live set
};

// Tries several orders of greedy lowest-fit placement and improves the best by a bounded, deterministic local search;
// stops at the lower bound.
Placement place(const Lifetimes& lifetimes, std::size_t node_count);

}  // namespace convoy
