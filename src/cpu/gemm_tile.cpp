#include "cpu/gemm_tile.h"

#include <map>
#include <mutex>
#include <tuple>

#include "base/error.h"
#include "cpu/gemm_onednn.h"
#include "cpu/isa.h"

namespace convoy::cpu {
namespace {

class PackedTile : public TileProduct {
 public:
  explicit PackedTile(const TileSpec& s)
      : kernels_(active_gemm_kernels()),
        product_{s.in == DType::kF64,
                 s.transpose_a,
                 s.transpose_b,
                 s.accumulate,
                 s.m,
                 s.n,
                 s.k,
                 s.lda,
                 s.ldb,
                 s.ldc,
                 nullptr,
                 nullptr,
                 nullptr,
                 nullptr,
                 nullptr} {}
  std::size_t scratch_bytes() const override {
    return align64(static_cast<std::size_t>(kernels_.packed_scratch_bytes()));
  }
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) override {
    PackedProduct p = product_;
    p.a = a;
    p.b = b;
    p.bias = bias;
    p.c = c;
    p.scratch = scratch;
    kernels_.packed_product(p);
  }

 private:
  const GemmKernels& kernels_;
  PackedProduct product_;
};

std::shared_ptr<TileProduct> create(const TileSpec& spec) {
  // oneDNN has a product that needs no hidden buffers from AVX-512 on; below that our own is used.
  if (spec.in != DType::kF64 && active_isa() == Isa::kAvx512) {
    if (auto tile = prepare_onednn_tile(spec, spec.in == DType::kBF16)) return tile;
  }
  check(spec.in == spec.out && (spec.in == DType::kF32 || spec.in == DType::kF64),
        "a matrix product of this type has no kernel on this processor");
  return std::make_shared<PackedTile>(spec);
}

}  // namespace

std::shared_ptr<TileProduct> TileProduct::prepare(const TileSpec& spec) {
  static std::mutex lock;
  static std::map<std::pair<TileSpec, Isa>, std::weak_ptr<TileProduct>> cache;
  const std::lock_guard guard(lock);
  std::weak_ptr<TileProduct>& entry = cache[{spec, active_isa()}];
  if (auto tile = entry.lock()) return tile;
  auto tile = create(spec);
  entry = tile;
  return tile;
}

bool native_bf16() {
  static const bool has = onednn_has_bf16();
  return has && active_isa() == Isa::kAvx512;
}

const GemmKernels& active_gemm_kernels() {
#if defined(__x86_64__)
  return pick(&base::gemm_kernels, &avx2::gemm_kernels, &avx512::gemm_kernels)();
#else
  return base::gemm_kernels();
#endif
}

}  // namespace convoy::cpu
