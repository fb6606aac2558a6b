// The fixed order in which numbers of several ranks are summed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace convoy {

// out[i] = the sum over the operands, neighbours first: ((0+1)+(2+3))+…; an operand without a neighbour goes up a level
// as it is. 16-bit numbers are rounded at every addition, so that a subtree may be summed elsewhere and stored. `out`
// may be one of the operands. At most 1024 of them.
void tree_sum(DType dtype, std::span<const std::byte* const> operands, std::byte* out, std::int64_t count);

}  // namespace convoy
