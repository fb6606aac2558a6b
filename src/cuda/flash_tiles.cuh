// Pieces of the tensor-core kernels of attention: tiles of rows in shared memory and their products by one warp.
//
// A warp owns kTall tiles of 16 rows. Scores of a tile are held as the accumulators of 16 x 8 products: lane l has rows
// l / 4 and l / 4 + 8 (elements 0, 1 and 2, 3), columns 2 (l % 4) and the next. Two neighbours of them, rounded, are
// the left factor of the next product as they lie.
#pragma once

#include "cuda/flash_common.cuh"

namespace convoy::cuda {

// Rows of kDim 16-bit elements in shared memory. kDim / 8 is even, so the pad of 16 bytes puts any 8 rows' pieces of 16
// bytes on different banks.
template <int kDim>
struct Tile {
  static_assert(kDim % 32 == 0);
  static constexpr int kRowBytes = (kDim + 8) * 2;
  static constexpr int bytes(int rows) { return rows * kRowBytes; }
};

// Starts the copy of rows [first, first + kRows) of `from` (rows below `end`, the first `dim` elements; else zeros).
template <int kDim, int kRows, int kThreads>
__device__ __forceinline__ void copy_rows(std::uint32_t to, const std::uint16_t* from, std::int64_t stride, int first,
                                          int end, int dim, bool wide) {
  constexpr int kRowBytes = Tile<kDim>::kRowBytes;
  const int tid = static_cast<int>(threadIdx.x);
  if (wide) {
    constexpr int kPieces = kDim / 8;
#pragma unroll
    for (int step = 0; step < (kRows * kPieces + kThreads - 1) / kThreads; ++step) {
      const int i = step * kThreads + tid, r = i / kPieces, d = i % kPieces * 8;
      if (kRows * kPieces % kThreads != 0 && i >= kRows * kPieces) break;
      const bool valid = first + r < end && d < dim;
      copy_async<16>(to + static_cast<std::uint32_t>(r * kRowBytes + d * 2),
                     valid ? from + (first + r) * stride + d : from, valid);
    }
  } else {
    constexpr int kPieces = kDim / 2;
#pragma unroll 1
    for (int i = tid; i < kRows * kPieces; i += kThreads) {
      const int r = i / kPieces, d = i % kPieces * 2;
      const bool valid = first + r < end && d < dim;
      copy_async<4>(to + static_cast<std::uint32_t>(r * kRowBytes + d * 2),
                    valid ? from + (first + r) * stride + d : from, valid);
    }
  }
}

// Where a lane points load_matrices to, relative to the tile's first element.
// Left factors, and right factors that lie as [k][n] (loaded transposed): rows l % 16, columns 8 (l / 16).
template <int kDim>
__device__ __forceinline__ std::uint32_t lane_by_rows() {
  const std::uint32_t lane = threadIdx.x % 32;
  return lane % 16 * Tile<kDim>::kRowBytes + lane / 16 * 16;
}
// Right factors that lie as [n][k]: rows l % 8 and 8 more for the upper half, columns 8 (l / 8 % 2).
template <int kDim>
__device__ __forceinline__ std::uint32_t lane_by_columns() {
  const std::uint32_t lane = threadIdx.x % 32;
  return (lane % 8 + lane / 16 * 8) * Tile<kDim>::kRowBytes + lane / 8 % 2 * 16;
}

template <int kTall, int kWide>
__device__ __forceinline__ void clear(float (&c)[kTall][kWide][4]) {
#pragma unroll
  for (int m = 0; m < kTall; ++m)
#pragma unroll
    for (int n = 0; n < kWide; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[m][n][e] = 0;
}

// c = a bᵀ over kDim: `a` the warp's rows, `b` kWide * 8 rows of the other side (addresses with their lane's offset).
template <class T, int kDim, int kTall, int kWide>
__device__ __forceinline__ void score_product(std::uint32_t a, std::uint32_t b, float (&c)[kTall][kWide][4]) {
  constexpr int kRowBytes = Tile<kDim>::kRowBytes;
  clear(c);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    std::uint32_t left[kTall][4];
#pragma unroll
    for (int m = 0; m < kTall; ++m) load_matrices(left[m], a + m * 16 * kRowBytes + k * 32);
#pragma unroll
    for (int n = 0; n < kWide; n += 2) {
      std::uint32_t right[4];
      load_matrices(right, b + n * 8 * kRowBytes + k * 32);
#pragma unroll
      for (int m = 0; m < kTall; ++m) {
        multiply<T>(c[m][n], left[m], right[0], right[1]);
        multiply<T>(c[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// The same with the left factor in registers.
template <class T, int kDim, int kTall, int kWide>
__device__ __forceinline__ void score_product(const std::uint32_t (&left)[kTall][kDim / 16][4], std::uint32_t b,
                                              float (&c)[kTall][kWide][4]) {
  constexpr int kRowBytes = Tile<kDim>::kRowBytes;
  clear(c);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kWide; n += 2) {
      std::uint32_t right[4];
      load_matrices(right, b + n * 8 * kRowBytes + k * 32);
#pragma unroll
      for (int m = 0; m < kTall; ++m) {
        multiply<T>(c[m][n], left[m][k], right[0], right[1]);
        multiply<T>(c[m][n + 1], left[m][k], right[2], right[3]);
      }
    }
  }
}

// sum += p x: `p` scores of kWide * 8 columns, `x` as many rows, of which kColumns * 8 elements (address with its
// lane's offset).
template <class T, int kDim, int kTall, int kWide, int kColumns>
__device__ __forceinline__ void add_product(const float (&p)[kTall][kWide][4], std::uint32_t x,
                                            float (&sum)[kTall][kColumns][4]) {
  constexpr int kRowBytes = Tile<kDim>::kRowBytes;
#pragma unroll
  for (int k = 0; k < kWide / 2; ++k) {
    std::uint32_t left[kTall][4];
#pragma unroll
    for (int m = 0; m < kTall; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        left[m][i] = pack<T>(p[m][2 * k + i / 2][i % 2 * 2], p[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < kColumns; n += 2) {
      std::uint32_t right[4];
      load_matrices_transposed(right, x + k * 16 * kRowBytes + n * 16);
#pragma unroll
      for (int m = 0; m < kTall; ++m) {
        multiply<T>(sum[m][n], left[m], right[0], right[1]);
        multiply<T>(sum[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// --- rows of a warp ------------------------------------------------------------------------------------------------

// What the warp's rows see: nothing outside of [low, high), everything inside of [all_low, all_high).
struct WarpRange {
  int low, high, all_low, all_high;
  __device__ bool touches(int first, int count) const { return first < high && first + count > low; }
  __device__ bool fills(int first, int count) const { return first >= all_low && first + count <= all_high; }
};
template <int kTall>
__device__ __forceinline__ WarpRange warp_range(const int2* ranges, int first, int rows) {
  const int row = first + static_cast<int>(threadIdx.x % 32) % (16 * kTall);
  // Rows behind the last one are stored by nobody and so may see everything and need nothing.
  const bool real = row < rows;
  const int2 r = real ? ranges[row] : make_int2(0, 0);
  constexpr unsigned kAll = 0xffffffffu;
  return {__reduce_min_sync(kAll, real ? r.x : 0x7fffffff), __reduce_max_sync(kAll, real ? r.y : 0),
          __reduce_max_sync(kAll, real ? r.x : 0), __reduce_min_sync(kAll, real ? r.y : 0x7fffffff)};
}

// Scores outside of their row's range become -inf.
template <int kTall, int kWide>
__device__ __forceinline__ void mask_scores(float (&s)[kTall][kWide][4], const int2* ranges, int first_row, int rows,
                                            int first_column) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int m = 0; m < kTall; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * m + 8 * half + lane / 4;
      const int2 range = row < rows ? ranges[row] : make_int2(0, 0);
      const int low = range.x - first_column - lane % 4 * 2, high = range.y - first_column - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kWide; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * n + e < low || 8 * n + e >= high) s[m][n][2 * half + e] = -INFINITY;
    }
}

// The same where the ranges are the columns'.
template <int kTall, int kWide>
__device__ __forceinline__ void mask_columns(float (&s)[kTall][kWide][4], const int2* ranges, int first_row,
                                             int first_column, int columns) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int n = 0; n < kWide; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = first_column + 8 * n + lane % 4 * 2 + e;
      const int2 range = column < columns ? ranges[column] : make_int2(0, 0);
      const int low = range.x - first_row - lane / 4, high = range.y - first_row - lane / 4;
#pragma unroll
      for (int m = 0; m < kTall; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (16 * m + 8 * half < low || 16 * m + 8 * half >= high) s[m][n][2 * half + e] = -INFINITY;
    }
}

// The bits of dropout of the warp's queries (rows) and kWide * 8 keys (columns): 32 keys a word, spread over the lanes.
template <int kTall, int kWide>
struct QueryRowBits {
  static constexpr int kWords = kWide / 4;  // of a row
  static constexpr int kSlots = (kWords * 16 * kTall + 31) / 32;
  static_assert(kWide % 4 == 0 && kTall <= 2);
  std::uint32_t slot[kSlots];

  __device__ __forceinline__ void fill(const FlashJob& job, int head, int first_query, int first_key) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int word = kTall == 2 ? i : 2 * i + lane / 16;
      slot[i] = word < kWords ? keep_bits<32>(job, head, first_query + lane % (16 * kTall), first_key + 32 * word) : 0;
    }
  }
  // The word of a row, at bit 0 the first of the lane's columns.
  __device__ __forceinline__ std::uint32_t row(int m, int half, int word) const {
    const int lane = static_cast<int>(threadIdx.x % 32), row = 16 * m + 8 * half + lane / 4;
    const std::uint32_t bits = kTall == 2 ? __shfl_sync(0xffffffffu, slot[word], row)
                                          : __shfl_sync(0xffffffffu, slot[word / 2], row + word % 2 * 16);
    return bits >> (lane % 4 * 2);
  }
};

// The same with keys as rows and kWide * 8 queries as columns.
template <int kTall, int kWide>
struct QueryColumnBits {
  static_assert(kWide % 4 == 0 && kTall <= 2);
  std::uint32_t slot[kWide / 4];

  __device__ __forceinline__ void fill(const FlashJob& job, int head, int first_query, int first_key) {
#pragma unroll
    for (int i = 0; i < kWide / 4; ++i)
      slot[i] = keep_bits<16 * kTall>(job, head, first_query + 32 * i + static_cast<int>(threadIdx.x % 32), first_key);
  }
  // The word of a column, at bit 0 the first of the lane's rows.
  __device__ __forceinline__ std::uint32_t column(int n, int e) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return __shfl_sync(0xffffffffu, slot[n / 4], n % 4 * 8 + lane % 4 * 2 + e) >> (lane / 4);
  }
};

// Stores the warp's rows times `factor`.
template <class T, int kTall, int kColumns>
__device__ __forceinline__ void store_rows(const float (&sum)[kTall][kColumns][4], float factor, std::uint16_t* to,
                                           std::int64_t stride, int first_row, int rows, int first_column, int dim) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int m = 0; m < kTall; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * m + 8 * half + lane / 4;
      if (row >= rows) continue;
      // An even head size: two elements always lie on 4 bytes.
      std::uint16_t* at = to + row * stride + first_column + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
        if (first_column + 8 * n + lane % 4 * 2 < dim)
          *reinterpret_cast<std::uint32_t*>(at + 8 * n) =
              pack<T>(sum[m][n][2 * half] * factor, sum[m][n][2 * half + 1] * factor);
    }
}

}  // namespace convoy::cuda
