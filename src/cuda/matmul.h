// Prepared matrix products through cuBLASLt.
//
//   C[m, n] = op(A) op(B) (+ bias[n] on every row) (+ C), row-major, sums in f32
//
// Factors of 8-bit types come with a scale each; A is then stored [m, k], B [n, k], and k and n are multiples of 16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "cuda/context.h"

namespace convoy::cuda {

struct MatmulSpec {
  DType in = DType::kF32, out = DType::kF32;
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  // A is stored [k, m]
  bool transpose_b = false;  // B is stored [n, k]
  bool accumulate = false;
  bool bias = false;
  std::int64_t a_row = 0, c_row = 0;  // elements from one stored row of A or C to the next, where there are gaps
  std::optional<DType> in_b = {};     // of B, where it is not A's
  bool rough_sums = false;            // 8-bit factors: sums may be kept in fewer bits than f32 has, which is faster
  std::int64_t a_stride() const { return a_row > 0 ? a_row : (transpose_a ? m : k); }
  std::int64_t c_stride() const { return c_row > 0 ? c_row : n; }
  DType b() const { return in_b.value_or(in); }
  DType bias_type() const { return is_fp8(in) ? out : in; }
  std::string key() const;
};

// Scratch that every product may use, at the start of its workspace.
inline constexpr std::size_t kMatmulWorkspace = std::size_t{32} << 20;

class Matmul {
 public:
  // Chooses the algorithm: from the choices made before, or by timing cuBLASLt's proposals on random data. Where rows
  // are no multiple of 16 bytes, Convoy's own product (product.h) is one of them, and may be the only one.
  Matmul(Context& context, const MatmulSpec& spec);
  ~Matmul();
  Matmul(Matmul&&) noexcept;

  // `sum` is what is added where the spec accumulates: c itself, or another matrix of its shape.
  void run(const void* a, const void* b, const void* bias, const void* sum, void* c, void* workspace) const;
  // Of 8-bit factors: their scales lie in the GPU's memory.
  void run_scaled(const void* a, const void* b, const float* a_scale, const float* b_scale, const void* bias,
                  const void* sum, void* c, void* workspace) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The algorithm of each product on this machine, kept in a file so that later runs and other ranks choose the same.
class MatmulChoices {
 public:
  // `file` may be empty: nothing is kept.
  explicit MatmulChoices(std::filesystem::path file);
  // The opaque algorithm for a key, made by `choose` if there is none. One process chooses at a time.
  cublasLtMatmulAlgo_t find(const std::string& key, const std::function<cublasLtMatmulAlgo_t()>& choose);

 private:
  void read();
  void write() const;
  std::filesystem::path file_;
  std::map<std::string, cublasLtMatmulAlgo_t> known_;
};

// Where the choices for a card lie: $CONVOY_CACHE_DIR, or $XDG_CACHE_HOME/convoy, or ~/.cache/convoy.
std::filesystem::path matmul_choices_file(const cudaDeviceProp& card);

}  // namespace convoy::cuda
