// What the kernels of one CUDA device share.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>

namespace convoy::cuda {

class MatmulChoices;

struct Options {
  int ordinal = 0;
  int sharers = 1;            // ranks that use this GPU
  bool tf32 = false;          // matrix products of f32 tensors in TF32
  bool deterministic = true;  // attention's backward pass gives the same bits each time
  bool search = true;         // time cuBLASLt's algorithms instead of taking its first proposal
};

struct Context {
  explicit Context(const Options& options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Options options;
  cudaDeviceProp properties{};
  cudaStream_t stream = nullptr;  // of all kernels
  cublasLtHandle_t blas = nullptr;
  std::unique_ptr<MatmulChoices> matmul_choices;
  bool whole_rows = false;  // see Device::set_whole_rows
};

}  // namespace convoy::cuda
