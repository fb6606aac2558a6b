// The row-wise arithmetic of the CPU device: plain functions over one row or a run of elements, one table per dtype,
// compiled once per instruction set. T is the table's dtype; "wide" is float32, or float64 for the float64 table.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace convoy::cpu {

struct OptimizerRun {
  double learning_rate, beta1, beta2, eps, bias_correction1, bias_correction2, weight_decay, gradient_scale;
  double momentum, dampening;
  bool nesterov, first_step;
  int kind;  // OptimizerKind
};

struct RowKernels {
  void (*add)(const void* a, const void* b, void* y, std::int64_t n);
  void (*scale)(double factor, const void* x, void* y, std::int64_t n);
  // gate_up holds [gate | up] of f elements each.
  void (*swiglu)(const void* gate_up, void* y, std::int64_t f);
  void (*swiglu_grad)(const void* dy, const void* gate_up, void* dgate_up, std::int64_t f);
  void (*gelu_grad)(const void* dy, const void* x, void* dx, std::int64_t n, bool tanh_form);
  // r = x + residual (or x where residual is null), written to sum where given; statistics and weight sums are wide.
  void (*rmsnorm)(const void* x, const void* residual, void* sum, const void* w, void* y, double eps, void* rstd,
                  std::int64_t n);
  void (*rmsnorm_grad)(const void* dy, const void* r, const void* w, const void* rstd, const void* plus, void* dr,
                       void* dw, std::int64_t n);
  void (*layernorm)(const void* x, const void* residual, void* sum, const void* w, const void* b, void* y, double eps,
                    void* mean, void* rstd, std::int64_t n);
  void (*layernorm_grad)(const void* dy, const void* r, const void* w, const void* mean, const void* rstd,
                         const void* plus, void* dr, void* dw, void* db, std::int64_t n);
  // Rotates `heads` heads of one row; copies nothing.
  void (*rotary)(const void* x, void* y, const float* cosines, const float* sines, std::int64_t heads,
                 std::int64_t head_dim, std::int64_t half, bool interleaved, bool inverse);
  // wide sum += x.
  void (*accumulate)(const void* x, void* sum, std::int64_t n);
  void (*dropout)(const void* x, void* y, std::int64_t n, float p, std::uint64_t seed, std::uint32_t use,
                  std::int64_t key);
  // Sum of squares in float64; adds the number of elements that are not finite.
  double (*sum_of_squares)(const void* x, std::int64_t n, std::int64_t* not_finite);
  // One run of the optimizer: weight of T, the rest wide; `master` is the weight itself where T is wide (then null).
  void (*optimizer)(const OptimizerRun& run, void* weight, void* master, const void* gradient, void* moment1,
                    void* moment2, std::int64_t n);
};

const RowKernels& row_kernels(DType dtype);

}  // namespace convoy::cpu
