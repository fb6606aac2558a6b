// Filling a micro-batch from rows. Internal to data/.
#pragma once

#include <cstdint>

#include "data/loader.h"

namespace convoy {

// `rows` rows of `length` tokens: those of the plan in [first_row, end_row), then empty ones.
struct BatchRows {
  std::int64_t first_row = 0, end_row = 0;
  std::int64_t rows = 0, length = 0;
};
Batch make_batch(const TokenData& data, const RowPlan& plan, std::int64_t epoch, const BatchRows& which,
                 TokenId pad_id);

}  // namespace convoy
