// Cross-entropy of rows of logits, and its gradient where they lie.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace convoy::cuda {

struct RowLoss {
  float value;
  float target;   // 1 for a row that has one
  float correct;  // 1 if its target is the most likely token
};

struct CrossEntropyRule {
  std::int64_t vocab;
  std::int64_t stride;  // elements from one row of logits to the next: behind the last come some without meaning
  float smoothing, z_loss;
  bool backward;
};

// logits [rows, stride]; targets [rows], negative where a row has none; losses [rows]. With `backward` the logits
// become scale · d(loss)/d(logits), zeros behind the vocabulary.
void cross_entropy_rows(DType dtype, const CrossEntropyRule& rule, std::int64_t rows, void* logits,
                        const std::int32_t* targets, const float* scale, RowLoss* losses, cudaStream_t stream);

}  // namespace convoy::cuda
