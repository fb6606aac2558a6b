// A plain matrix product of 16-bit matrices on tensor cores, for what cuBLASLt has no algorithm for: rows that are no
// multiple of 16 bytes (a vocabulary of 50257, say). Slower than cuBLASLt where both do.
#pragma once

#include "cuda/matmul.h"

namespace convoy::cuda {

// The meaning, layouts and arguments are Matmul's; every address is a multiple of its element's size. `spec.in` is bf16
// or f16, `spec.out` the same or f32. The order of the sums is a function of the shape alone. Needs no workspace.
void plain_product(cudaStream_t stream, const MatmulSpec& spec, const void* a, const void* b, const void* bias,
                   const void* sum, void* c);

}  // namespace convoy::cuda
