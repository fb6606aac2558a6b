// Weights in host memory between their uses (Ren et al., "ZeRO-Offload", 2021; Rajbhandari et al., "ZeRO-Infinity",
// 2021).
#pragma once

#include "graph/graph.h"

namespace convoy {

// On an ordered graph whose arena of weights lies in host memory: each weight, or this rank's shard of it, is copied to
// the device from one block ahead of the block that uses it on, and its memory there is free after that. Where the next
// use comes so soon that the copy for it would start by then, one copy serves both. Look-ups in a whole table
// (Embedding) read their rows in host memory themselves: few of many. Run after gather_weights and
// before shard_gradients, whose waits stand in other blocks.
void fetch_weights(Graph& graph);

}  // namespace convoy
