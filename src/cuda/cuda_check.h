// Errors of the CUDA libraries as Convoy's.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace convoy::cuda {

// Throws an internal error naming `what` (out of memory: does-not-fit) unless `status` is success.
void check_cuda(cudaError_t status, const char* what);
void check_cublas(cublasStatus_t status, const char* what);
// After a kernel launch.
inline void check_launch(const char* what) {
  check_cuda(cudaGetLastError(), what);
}

}  // namespace convoy::cuda
