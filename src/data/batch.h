// Filling a micro-batch from rows. Internal to data/.
#pragma once

#include <cstdint>

#include "data/loader.h"

namespace convoy {

// Rows [first_row, first_row + rows) of the plan; those past its end are empty.
Batch make_batch(const TokenData& data, const RowPlan& plan, std::int64_t epoch, std::int64_t first_row,
                 std::int64_t rows, TokenId pad_id);

}  // namespace convoy
