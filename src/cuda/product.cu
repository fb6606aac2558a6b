#include <mma.h>

#include <type_traits>

#include "cuda/numeric.cuh"
#include "cuda/product.h"

namespace convoy::cuda {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kThreads = 256;                    // 2 x 4 warps
constexpr int kTileM = 128, kTileN = 128, kTileK = 32;
constexpr int kWarpM = 64, kWarpN = 32;          // of one warp
constexpr int kPad = 8;                          // elements: other banks for the next row, 16 bytes as wmma asks
constexpr int kPatch = 20;                       // row of the floats in which a warp's 16 x 16 products leave

// Elements [row0, row0 + kRows) x [column0, column0 + kColumns) of a row-major matrix [rows, columns], zeros beyond it,
// on their way from memory to shared memory.
template <typename T, int kRows, int kColumns>
struct Piece {
  static constexpr int kStride = kColumns + kPad;
  static constexpr int kCount = kRows * kColumns / kThreads;
  T values[kCount];

  __device__ void load(const T* from, std::int64_t rows, std::int64_t columns, std::int64_t row0, std::int64_t column0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int e = i * kThreads + static_cast<int>(threadIdx.x);
      const std::int64_t r = row0 + e / kColumns, c = column0 + e % kColumns;
      values[i] = r < rows && c < columns ? from[r * columns + c] : narrow<T>(0.0f);
    }
  }
  __device__ void store(T* shared) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int e = i * kThreads + static_cast<int>(threadIdx.x);
      shared[e / kColumns * kStride + e % kColumns] = values[i];
    }
  }
};

struct Sizes {
  std::int64_t m, n, k;
};

template <typename T, typename Out, bool kTransposeA, bool kTransposeB>
__global__ void __launch_bounds__(kThreads) product_kernel(Sizes size, const T* a, const T* b, const T* bias,
                                                           const Out* sum, Out* c) {
  using PieceA = std::conditional_t<kTransposeA, Piece<T, kTileK, kTileM>, Piece<T, kTileM, kTileK>>;
  using PieceB = std::conditional_t<kTransposeB, Piece<T, kTileN, kTileK>, Piece<T, kTileK, kTileN>>;
  using LayoutA = std::conditional_t<kTransposeA, wmma::col_major, wmma::row_major>;
  using LayoutB = std::conditional_t<kTransposeB, wmma::col_major, wmma::row_major>;
  constexpr int kRowsA = kTransposeA ? kTileK : kTileM, kRowsB = kTransposeB ? kTileN : kTileK;
  constexpr int kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 16;
  __shared__ __align__(32) T shared_a[kRowsA * PieceA::kStride];
  __shared__ __align__(32) T shared_b[kRowsB * PieceB::kStride];
  __shared__ __align__(32) float patches[kThreads / 32][16 * kPatch];

  const std::int64_t across = (size.n + kTileN - 1) / kTileN;
  const std::int64_t m0 = blockIdx.x / across * kTileM, n0 = blockIdx.x % across * kTileN;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_m = warp / (kTileN / kWarpN) * kWarpM, warp_n = warp % (kTileN / kWarpN) * kWarpN;

  PieceA piece_a;
  PieceB piece_b;
  const auto load = [&](std::int64_t k0) {
    if constexpr (kTransposeA) {
      piece_a.load(a, size.k, size.m, k0, m0);
    } else {
      piece_a.load(a, size.m, size.k, m0, k0);
    }
    if constexpr (kTransposeB) {
      piece_b.load(b, size.n, size.k, n0, k0);
    } else {
      piece_b.load(b, size.k, size.n, k0, n0);
    }
  };

  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[kFragmentsM][kFragmentsN];
  for (auto& row : sums) {
    for (auto& each : row) wmma::fill_fragment(each, 0.0f);
  }
  load(0);
  for (std::int64_t k0 = 0; k0 < size.k; k0 += kTileK) {
    __syncthreads();  // the tiles before are used up
    piece_a.store(shared_a);
    piece_b.store(shared_b);
    __syncthreads();
    if (k0 + kTileK < size.k) load(k0 + kTileK);
#pragma unroll
    for (int k = 0; k < kTileK; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, T, LayoutA> left[kFragmentsM];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, T, LayoutB> right[kFragmentsN];
#pragma unroll
      for (int i = 0; i < kFragmentsM; ++i) {
        const int m = warp_m + 16 * i;
        wmma::load_matrix_sync(left[i], shared_a + (kTransposeA ? k * PieceA::kStride + m : m * PieceA::kStride + k),
                               PieceA::kStride);
      }
#pragma unroll
      for (int j = 0; j < kFragmentsN; ++j) {
        const int n = warp_n + 16 * j;
        wmma::load_matrix_sync(right[j], shared_b + (kTransposeB ? n * PieceB::kStride + k : k * PieceB::kStride + n),
                               PieceB::kStride);
      }
#pragma unroll
      for (int i = 0; i < kFragmentsM; ++i) {
#pragma unroll
        for (int j = 0; j < kFragmentsN; ++j) wmma::mma_sync(sums[i][j], left[i], right[j], sums[i][j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kFragmentsM; ++i) {
#pragma unroll
    for (int j = 0; j < kFragmentsN; ++j) {
      wmma::store_matrix_sync(patches[warp], sums[i][j], kPatch, wmma::mem_row_major);
      __syncwarp();
      for (int e = lane; e < 256; e += 32) {
        const std::int64_t row = m0 + warp_m + 16 * i + e / 16, column = n0 + warp_n + 16 * j + e % 16;
        if (row >= size.m || column >= size.n) continue;
        float value = patches[warp][e / 16 * kPatch + e % 16];
        if (bias != nullptr) value += widen(bias[column]);
        if (sum != nullptr) value += widen(sum[row * size.n + column]);
        c[row * size.n + column] = narrow<Out>(value);
      }
      __syncwarp();
    }
  }
}

template <typename T, typename Out>
void launch(cudaStream_t stream, const MatmulSpec& spec, const void* a, const void* b, const void* bias,
            const void* sum, void* c) {
  const std::int64_t tiles = ((spec.m + kTileM - 1) / kTileM) * ((spec.n + kTileN - 1) / kTileN);
  check(tiles < (std::int64_t{1} << 31), "a matrix product of too many tiles");
  const auto run = [&]<bool kTransposeA, bool kTransposeB>() {
    product_kernel<T, Out, kTransposeA, kTransposeB><<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(
        {spec.m, spec.n, spec.k}, static_cast<const T*>(a), static_cast<const T*>(b),
        spec.bias ? static_cast<const T*>(bias) : nullptr, spec.accumulate ? static_cast<const Out*>(sum) : nullptr,
        static_cast<Out*>(c));
  };
  if (spec.transpose_a) {
    spec.transpose_b ? run.template operator()<true, true>() : run.template operator()<true, false>();
  } else {
    spec.transpose_b ? run.template operator()<false, true>() : run.template operator()<false, false>();
  }
}

}  // namespace

void plain_product(cudaStream_t stream, const MatmulSpec& spec, const void* a, const void* b, const void* bias,
                   const void* sum, void* c) {
  if (spec.m == 0 || spec.n == 0) return;
  const bool wide = spec.out == DType::kF32;
  check((spec.in == DType::kBF16 || spec.in == DType::kF16) && (wide || spec.out == spec.in),
        "a plain product of other types than bf16 and f16");
  if (spec.in == DType::kBF16) {
    wide ? launch<bf16, float>(stream, spec, a, b, bias, sum, c) : launch<bf16, bf16>(stream, spec, a, b, bias, sum, c);
  } else {
    wide ? launch<f16, float>(stream, spec, a, b, bias, sum, c) : launch<f16, f16>(stream, spec, a, b, bias, sum, c);
  }
  check_launch("a plain matrix product");
}

}  // namespace convoy::cuda
