// Prepared matrix products on the CPU: C = activation(op(A) op(B) + bias (+ C)).
//
// A product is cut into tiles by its shape alone, never along k, and each tile is computed by one thread: the result
// has the same bits for any number of threads. Nothing is allocated by `run` (but for a few hundred bytes of oneDNN's
// bookkeeping per tile).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/dtype.h"

namespace convoy::cpu {

enum class Activation : std::uint8_t { kNone, kGeluErf, kGeluTanh };

struct GemmSpec {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;                // A is stored [k, m]
  bool transpose_b = false;                // B is stored [n, k], as a linear layer's weight is
  DType dtype = DType::kF32;               // of A, B and the bias: f32, bf16, f16, f64
  DType out = DType::kF32;                 // of C: `dtype`, or f32 for bf16 and f16
  std::int64_t lda = 0, ldb = 0, ldc = 0;  // elements between stored rows; 0 = no gap
  bool accumulate = false;                 // C += …; not together with an activation
  bool bias = false;                       // bias[n], added before the one rounding of the product
  Activation activation = Activation::kNone;
  // Also write the (rounded) input of the activation, which its backward pass needs; stride ldc. The activation is
  // taken of the rounded value either way.
  bool keep_preactivation = false;
  auto operator<=>(const GemmSpec&) const = default;
};

struct GemmArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* c = nullptr;
  void* preactivation = nullptr;
  void* workspace = nullptr;  // workspace_bytes(), 64-byte aligned
};

class Gemm {
 public:
  // Throws an internal error on a spec that makes no sense. m, n or k may be 0.
  explicit Gemm(const GemmSpec& spec);
  ~Gemm();
  Gemm(Gemm&&) noexcept;
  Gemm& operator=(Gemm&&) noexcept;

  const GemmSpec& spec() const;
  // A function of the spec and the processor's instruction set.
  std::size_t workspace_bytes() const;
  // May be called from several threads at once, each with its own workspace.
  void run(const GemmArgs& args) const;

 private:
  struct Plan;
  std::unique_ptr<const Plan> plan_;
};

}  // namespace convoy::cpu
