#include "cuda/column_sums.h"
#include "cuda/numeric.cuh"

namespace convoy::cuda {
namespace {

constexpr int kLanes = 32, kGroups = 32;
constexpr std::int64_t kMostChunks = 128;

struct PartialSums {
  PartialSum first, second;
};

__global__ void partials_kernel(const float* partial, std::int64_t chunks, const PartialSums to) {
  __shared__ float sums[kGroups][kLanes + 1];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  const std::int64_t columns = to.first.columns + to.second.columns;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t chunk = threadIdx.y; chunk < chunks; chunk += kGroups) sum += partial[chunk * columns + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int g = 1; g < kGroups; ++g) sum += sums[g][threadIdx.x];
  const bool second = column >= to.first.columns;
  const PartialSum& part = second ? to.second : to.first;
  float& out = part.out[second ? column - to.first.columns : column];
  out = part.accumulate ? out + sum : sum;
}

// A warp sums N columns a lane over every eighth row of its chunk.
template <typename T, int N>
__global__ void chunk_kernel(const T* x, std::int64_t rows, std::int64_t n, std::int64_t chunk_rows, float* partial) {
  constexpr int kWarps = 8;
  __shared__ float shared[kWarps][32 * N];
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * 32 + lane) * N;
  const std::int64_t first = blockIdx.y * chunk_rows;
  const std::int64_t last = first + chunk_rows < rows ? first + chunk_rows : rows;
  float sum[N] = {};
  if (column < n) {
#pragma unroll 4
    for (std::int64_t r = first + warp; r < last; r += kWarps) {
      const auto pack = load_pack<N>(x + r * n + column);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += widen(pack.v[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) shared[warp][lane * N + i] = sum[i];
  __syncthreads();
  for (int c = warp * 32 + lane; c < 32 * N; c += kWarps * 32) {
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * 32 * N + c;
    if (at >= n) continue;
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += shared[w][c];
    partial[blockIdx.y * n + at] = total;
  }
}

std::int64_t chunk_rows_of(std::int64_t rows) {
  return std::max<std::int64_t>(64, ceil_div(rows, kMostChunks));
}

}  // namespace

void sum_partials(const float* partial, std::int64_t chunks, std::initializer_list<PartialSum> sums,
                  cudaStream_t stream) {
  check(sums.size() == 1 || sums.size() == 2, "sums of chunks go to one or two outputs");
  const PartialSums to{sums.begin()[0], sums.size() == 2 ? sums.begin()[1] : PartialSum{nullptr, 0, false}};
  const std::int64_t columns = to.first.columns + to.second.columns;
  if (columns == 0) return;
  partials_kernel<<<grid_of(columns, kLanes), dim3(kLanes, kGroups), 0, stream>>>(partial, chunks, to);
  check_launch("sums of chunks");
}

std::size_t column_sums_workspace(std::int64_t rows, std::int64_t n) {
  return static_cast<std::size_t>(ceil_div(rows, chunk_rows_of(rows)) * n) * sizeof(float);
}

void column_sums(DType dtype, const void* x, std::int64_t rows, std::int64_t n, bool accumulate, float* out,
                 void* workspace, cudaStream_t stream) {
  if (n == 0) return;
  const std::int64_t chunk_rows = chunk_rows_of(rows), chunks = ceil_div(rows, chunk_rows);
  auto* partial = static_cast<float*>(workspace);
  with_type(dtype, [&]<typename T>() {
    constexpr int N = 16 / sizeof(T);
    const auto* from = static_cast<const T*>(x);
    const dim3 block(32, 8);
    if (n % N == 0) {
      chunk_kernel<T, N><<<dim3(grid_of(n, 32 * N), static_cast<unsigned>(chunks)), block, 0, stream>>>(
          from, rows, n, chunk_rows, partial);
    } else {
      chunk_kernel<T, 1><<<dim3(grid_of(n, 32), static_cast<unsigned>(chunks)), block, 0, stream>>>(
          from, rows, n, chunk_rows, partial);
    }
  });
  check_launch("column sums");
  sum_partials(partial, chunks, {{out, n, accumulate}}, stream);
}

}  // namespace convoy::cuda
