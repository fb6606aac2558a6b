// Factors of 8-bit products: their scales and codes.
#include <algorithm>

#include "cuda/fp8.cuh"
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/fp8.h"

namespace convoy::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 8;  // bf16 of 16 bytes
constexpr int kMostBlocks = 2048;
constexpr std::uint32_t kAbsolute = 0x7fffffffU;

// The largest of a block's values, in its first thread.
__device__ std::uint32_t block_max(std::uint32_t value) {
  __shared__ std::uint32_t of_warp[32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  value = __reduce_max_sync(~0U, value);
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  if (warp == 0) value = __reduce_max_sync(~0U, lane < static_cast<int>(blockDim.x) / 32 ? of_warp[lane] : 0U);
  return value;
}

// Each block's largest |x|, as the bits of an f32: they order as the values do, NaN last. Two bf16 are a word.
__global__ void __launch_bounds__(kThreads) largest_kernel(const uint4* x, std::int64_t packs, std::uint32_t* largest) {
  std::uint32_t most = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
#pragma unroll 4
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs; i += stride) {
    const uint4 pack = x[i];
    for (const std::uint32_t word : {pack.x, pack.y, pack.z, pack.w})
      most = max(most, max(word & 0x7fff0000U, word << 16 & kAbsolute));
  }
  most = block_max(most);
  if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

// See Fp8Scale; both types end at 1.75 · 2^top.
__global__ void scale_kernel(const std::uint32_t* largest, int count, std::uint32_t top, float* scale) {
  std::uint32_t most = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) most = max(most, largest[i]);
  most = block_max(most);
  if (threadIdx.x != 0) return;
  constexpr std::uint32_t kInfinity = 0x7f800000U, kHalfway = 0x600000U, kLeast = 127 - 100;
  const std::uint32_t exponent = (most >> 23) + ((most & 0x7fffffU) > kHalfway ? 1 : 0);
  const std::uint32_t bits = (max(exponent, kLeast + top) - top) << 23;
  *scale = __uint_as_float(most >= kInfinity ? kAbsolute : bits);
}

// The codes of eight values in a row.
template <__nv_fp8_interpretation_t To>
__device__ uint2 eight_codes(const uint4& pack, float factor) {
  const auto two = [factor](std::uint32_t word) {
    return codes_of<To>(__uint_as_float(word << 16) * factor, __uint_as_float(word & 0xffff0000U) * factor);
  };
  return {two(pack.x) | two(pack.y) << 16, two(pack.z) | two(pack.w) << 16};
}

template <__nv_fp8_interpretation_t To>
__global__ void __launch_bounds__(kThreads) rows_kernel(const uint4* x, std::int64_t pairs, const float* scale,
                                                        uint4* codes) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= pairs) return;
  const float factor = 1.0F / *scale;  // a power of two too
  const uint2 first = eight_codes<To>(x[2 * i], factor), second = eight_codes<To>(x[2 * i + 1], factor);
  codes[i] = {first.x, first.y, second.x, second.y};
}

// Bytes j of four words as one word, for each j.
__device__ void transpose_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d,
                                std::uint32_t (&out)[4]) {
  const std::uint32_t low_ab = __byte_perm(a, b, 0x5140), low_cd = __byte_perm(c, d, 0x5140);
  const std::uint32_t high_ab = __byte_perm(a, b, 0x7362), high_cd = __byte_perm(c, d, 0x7362);
  out[0] = __byte_perm(low_ab, low_cd, 0x5410);
  out[1] = __byte_perm(low_ab, low_cd, 0x7632);
  out[2] = __byte_perm(high_ab, high_cd, 0x5410);
  out[3] = __byte_perm(high_ab, high_cd, 0x7632);
}

constexpr int kTileRows = 128, kTileColumns = 64;  // 128 codes of a column leave as one line of memory

// A block a tile. A thread makes the codes of four rows by eight columns; warps write columns.
template <__nv_fp8_interpretation_t To, bool kRows>
__global__ void __launch_bounds__(kThreads) transposing_kernel(const bf16* x, std::int64_t m, std::int64_t n,
                                                               const float* scale, std::uint8_t* rows,
                                                               std::uint8_t* transposed) {
  __shared__ std::uint32_t tile[kTileColumns][kTileRows / 4 + 1];
  constexpr int kAcross = kTileColumns / kPack;
  const int across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTileRows;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kTileColumns;
  const std::int64_t row = first_row + 4 * down, column = first_column + kPack * across;
  if (row < m && column < n) {  // both are cut at multiples of 16
    const float factor = 1.0F / *scale;
    uint2 codes[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const std::int64_t at = (row + r) * n + column;
      codes[r] = eight_codes<To>(*reinterpret_cast<const uint4*>(x + at), factor);
      if constexpr (kRows) *reinterpret_cast<uint2*>(rows + at) = codes[r];
    }
    std::uint32_t left[4], right[4];
    transpose_bytes(codes[0].x, codes[1].x, codes[2].x, codes[3].x, left);
    transpose_bytes(codes[0].y, codes[1].y, codes[2].y, codes[3].y, right);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      tile[kPack * across + c][down] = left[c];
      tile[kPack * across + 4 + c][down] = right[c];
    }
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int c = static_cast<int>(threadIdx.x) / 32; c < kTileColumns; c += kThreads / 32) {
    const std::int64_t to_row = first_row + 4 * lane;
    if (first_column + c < n && to_row < m)
      *reinterpret_cast<std::uint32_t*>(transposed + (first_column + c) * m + to_row) = tile[c][lane];
  }
}

int largest_blocks(std::int64_t packs) {
  return static_cast<int>(std::min<std::int64_t>(kMostBlocks, ceil_div(packs, kThreads)));
}

void register_scale(KernelRegistry& registry, Context& c) {
  registry.add<Fp8Scale>(
      [&c](const Fp8Scale& op, const KernelRequest& q) {
        const std::uint32_t top = op.to == DType::kF8E4M3 ? 8 : 15;
        return [&c, top, packs = q.inputs[0]->numel() / kPack](const KernelArguments& a) {
          auto* largest = reinterpret_cast<std::uint32_t*>(a.workspace);
          const int blocks = largest_blocks(packs);
          largest_kernel<<<blocks, kThreads, 0, c.stream>>>(reinterpret_cast<const uint4*>(a.inputs[0]), packs,
                                                            largest);
          scale_kernel<<<1, kThreads, 0, c.stream>>>(largest, blocks, top, reinterpret_cast<float*>(a.outputs[0]));
          check_launch("fp8_scale");
        };
      },
      [](const Fp8Scale&, const KernelRequest& q) {
        return sizeof(std::uint32_t) * static_cast<std::size_t>(largest_blocks(q.inputs[0]->numel() / kPack));
      });
}

template <__nv_fp8_interpretation_t To>
void quantize(const Fp8Quantize& op, std::int64_t m, std::int64_t n, const KernelArguments& a, cudaStream_t stream) {
  const auto* scale = reinterpret_cast<const float*>(a.inputs[1]);
  auto* first = reinterpret_cast<std::uint8_t*>(a.outputs[0]);
  if (!op.keeps_transposed()) {
    const std::int64_t pairs = m * n / (2 * kPack);
    rows_kernel<To><<<grid_of(pairs, kThreads), kThreads, 0, stream>>>(reinterpret_cast<const uint4*>(a.inputs[0]),
                                                                      pairs, scale, reinterpret_cast<uint4*>(first));
    return;
  }
  const auto* x = reinterpret_cast<const bf16*>(a.inputs[0]);
  const dim3 grid(grid_of(n, kTileColumns), grid_of(m, kTileRows));
  if (op.keeps_rows()) {
    transposing_kernel<To, true>
        <<<grid, kThreads, 0, stream>>>(x, m, n, scale, first, reinterpret_cast<std::uint8_t*>(a.outputs[1]));
  } else {
    transposing_kernel<To, false><<<grid, kThreads, 0, stream>>>(x, m, n, scale, nullptr, first);
  }
}

void register_quantize(KernelRegistry& registry, Context& c) {
  registry.add<Fp8Quantize>([&c](const Fp8Quantize& op, const KernelRequest& q) {
    return [&c, op, m = q.inputs[0]->shape[0], n = q.inputs[0]->shape[1]](const KernelArguments& a) {
      with_fp8(op.to, [&]<__nv_fp8_interpretation_t To>() { quantize<To>(op, m, n, a, c.stream); });
      check_launch("fp8_quantize");
    };
  });
}

}  // namespace

void register_fp8_codes(KernelRegistry& registry, Context& c) {
  register_scale(registry, c);
  register_quantize(registry, c);
}

}  // namespace convoy::cuda
