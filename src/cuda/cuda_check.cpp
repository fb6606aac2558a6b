#include "cuda/cuda_check.h"

#include <fmt/format.h>

#include "base/error.h"

namespace convoy::cuda {

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const std::string text = fmt::format("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // an allocation that failed leaves the device usable
    throw Error(Status::kDoesNotFit, text).mend("see what takes less with: convoy plan --device cuda");
  }
  throw internal_error(text);
}

void check_cublas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) throw internal_error(fmt::format("{}: {}", what, cublasLtGetStatusName(status)));
}

}  // namespace convoy::cuda
