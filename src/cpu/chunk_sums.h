// Sums over rows, in a fixed order: within fixed chunks of rows, then over the chunks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace convoy::cpu {

// Sets (or adds to) target[0…n) the sums of `chunks` partial sums, `stride` bytes apart. All of dtype `wide`.
void sum_chunks(const std::byte* partial, std::int64_t chunks, std::int64_t stride, std::int64_t n, DType wide,
                bool accumulate, std::byte* target);

}  // namespace convoy::cpu
