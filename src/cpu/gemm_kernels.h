// The per-instruction-set part of the matrix product: conversions, the packed product (f64, and f32 where oneDNN has no
// allocation-free one), and what follows the product. Plain declarations only (see cpu/isa.h).
#pragma once

#include <cstdint>

namespace convoy::cpu {

// One single-threaded product C[m, n] (+)= op(A) op(B) (+ bias) of f32 or f64 (`f64`).
struct PackedProduct {
  bool f64, transpose_a, transpose_b, accumulate;
  std::int64_t m, n, k, lda, ldb, ldc;
  const void *a, *b, *bias;
  void *c, *scratch;  // packed_scratch_bytes
};

struct GemmKernels {
  std::int64_t (*packed_scratch_bytes)();
  void (*packed_product)(const PackedProduct&);
  // Rows of n elements between a storage type (DType's number) and f32 (f64 for f64).
  void (*load_rows)(int dtype, const void* from, std::int64_t ld, std::int64_t rows, std::int64_t n, void* to,
                    std::int64_t ld_to);
  void (*store_rows)(int dtype, const void* from, std::int64_t ld, std::int64_t rows, std::int64_t n, void* to,
                     std::int64_t ld_to);
  // c = activation(c), in place, of storage type `dtype`; the input goes to `pre` (same shape and stride) unless null.
  // activation: 1 gelu_erf, 2 gelu_tanh.
  void (*activate)(int dtype, int activation, void* c, std::int64_t ld, std::int64_t rows, std::int64_t n, void* pre);
};

namespace base {
const GemmKernels& gemm_kernels();
}
namespace avx2 {
const GemmKernels& gemm_kernels();
}
namespace avx512 {
const GemmKernels& gemm_kernels();
}

}  // namespace convoy::cpu
