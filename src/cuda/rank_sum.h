// Sums of tensors that lie in the memory of several ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace convoy::cuda {

inline constexpr int kMostSummedRanks = 16;
using RankOperands = std::array<const std::byte*, kMostSummedRanks>;

// out[i] = the sum over the first `ranks` operands, neighbours first: ((0+1)+(2+3))+…, as comm/tree_sum.h does: 16-bit
// numbers in f32, rounded once. `out` may be one of the operands.
void launch_rank_sum(DType dtype, const RankOperands& operands, int ranks, std::byte* out, std::int64_t count,
                     cudaStream_t stream);
// The same for up to kMostManySummed operands.
inline constexpr int kMostManySummed = 256;
void launch_rank_sum(DType dtype, std::span<const std::byte* const> operands, std::byte* out, std::int64_t count,
                     cudaStream_t stream);

}  // namespace convoy::cuda
