// The arithmetic of the model itself: what throughput is divided by, whatever is recomputed and however it is cut.
#pragma once

#include "program/program.h"

namespace convoy {

// FLOPs of a micro-batch program, without its recomputation. A program's own cost takes all tokens of the micro-batch
// for one document, which bounds it from above; here attention stays within rows of `seq` tokens, as it does in
// training (documents packed in one row attend less still; that is not subtracted). The gradient of attention counts as
// the five products that it needs, 2.5 times the forward pass.
double model_flops(const Program& micro, std::int64_t seq);

}  // namespace convoy
