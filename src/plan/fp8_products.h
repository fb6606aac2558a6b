// Which of a model's products fp8 computes in 8 bits.
#pragma once

#include <vector>

#include "passes/fp8.h"
#include "plan/program_set.h"

namespace convoy {

// The weights that it is asked for: all but adapters', whose ranks are too small to gain from it. Of them the products
// inside transformer blocks are taken, which leaves the head and embeddings out.
std::vector<ValueId> weights_for_fp8(const Model& model, const ModelGraph& built);

// What stays in bf16 of the products that a micro-batch has, each weight once: for several shapes of micro-batches,
// what stays in any of them. An error where nothing can be in 8 bits.
std::vector<LeftProduct> products_left_by_fp8(const Model& model, const TrainShape& shape);

}  // namespace convoy
