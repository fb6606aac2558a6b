// The per-instruction-set part of the cross-entropy. Plain declarations only (see cpu/isa.h).
#pragma once

#include <cstdint>

namespace convoy::cpu {

// Logits of `rows` rows and `columns` vocabulary entries, row-major without gaps; f32, or f64 if `f64`.
struct LogitPanel {
  bool f64;
  std::int64_t rows, columns;
  void* logits;
};

// Of each row of a panel; Real.
struct PanelSums {
  void *max, *exp_sum;  // sum of exp(x - max)
  void* sum;            // sum of x; null if not asked for
};

// Turns logits into their gradient, in place: factor (exp(x - lse) mass - uniform), minus factor target_weight at the
// target, where mass = 1 + 2 z_loss lse. As bf16, the rows move together: row r starts at element r * columns.
struct PanelGradient {
  std::int64_t first_column;    // vocabulary entry of column 0
  const std::int32_t* targets;  // of the rows
  const double* lse;            // of the rows
  double z_loss, uniform, target_weight, factor;
  bool to_bf16;
};

struct CrossEntropyKernels {
  void (*sums)(const LogitPanel&, const PanelSums&);
  void (*gradient)(const LogitPanel&, const PanelGradient&);
  // to[i] (of storage type dtype) = sum over shares of from[share * stride + i] (Real), in order.
  void (*reduce_row)(int dtype, const void* from, std::int64_t stride, std::int64_t shares, std::int64_t n, void* to);
};

namespace base {
const CrossEntropyKernels& cross_entropy_kernels();
}
namespace avx2 {
const CrossEntropyKernels& cross_entropy_kernels();
}
namespace avx512 {
const CrossEntropyKernels& cross_entropy_kernels();
}

}  // namespace convoy::cpu
