#include "cpu/chunk_sums.h"

#include <algorithm>
#include <cstring>

#include "cpu/registry.h"
#include "cpu/row_kernels.h"

namespace convoy::cpu {

void sum_chunks(const std::byte* partial, std::int64_t chunks, std::int64_t stride, std::int64_t n, DType wide,
                bool accumulate, std::byte* target) {
  const RowKernels& k = row_kernels(wide);
  const auto size = static_cast<std::int64_t>(size_of(wide));
  constexpr std::int64_t kColumns = 256;
#pragma omp parallel for schedule(static)
  for (std::int64_t piece = 0; piece < pieces(n, kColumns); ++piece) {
    const std::int64_t at = piece * kColumns;
    const std::int64_t count = std::min(kColumns, n - at);
    if (!accumulate) std::memset(target + at * size, 0, static_cast<std::size_t>(count * size));
    for (std::int64_t c = 0; c < chunks; ++c) k.accumulate(partial + c * stride + at * size, target + at * size, count);
  }
}

}  // namespace convoy::cpu
