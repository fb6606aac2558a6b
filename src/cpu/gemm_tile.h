// One prepared, single-threaded matrix product: the tile that every larger product is cut into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/dtype.h"
#include "cpu/gemm_kernels.h"

namespace convoy::cpu {

// C[m, n] (+)= op(A) op(B) (+ bias[n]), row-major. A is [m, k], or stored [k, m] if transposed; B is [k, n] or [n, k].
struct TileSpec {
  std::int64_t m, n, k, lda, ldb, ldc;
  DType in, out;  // f32 -> f32, f64 -> f64, and where `native_bf16()` bf16 -> bf16 or f32
  bool transpose_a, transpose_b, accumulate, bias;
  auto operator<=>(const TileSpec&) const = default;
};

// Prepared objects are shared by shape. `run` may be called from any number of threads at once and neither allocates
// (but for oneDNN's few bookkeeping bytes) nor opens a parallel region.
class TileProduct {
 public:
  static std::shared_ptr<TileProduct> prepare(const TileSpec& spec);
  virtual ~TileProduct() = default;
  // Scratch of one run, a function of the spec and of the processor; 64-byte aligned when given.
  virtual std::size_t scratch_bytes() const = 0;
  virtual void run(const void* a, const void* b, const void* bias, void* c, void* scratch) = 0;
};

// True if products of bf16 run on bf16 instructions; else the caller converts to f32.
bool native_bf16();
const GemmKernels& active_gemm_kernels();

inline std::size_t align64(std::size_t n) {
  return (n + 63) / 64 * 64;
}

}  // namespace convoy::cpu
