// The arithmetic of the model itself: what throughput is divided by, whatever is recomputed and however it is cut.
#pragma once

#include "program/program.h"

namespace convoy {

// FLOPs of a micro-batch program, without its recomputation. Attention stays within rows, as it does in training
// (documents packed in one row attend less still; that is not subtracted).
double model_flops(const Program& micro);

}  // namespace convoy
