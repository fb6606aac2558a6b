// Table look-ups and their gradients. Tokens are sorted by id, stably; a warp adds the rows of one id in token order.
// Where many are alike, warps add pieces of them, and these are added in order.
#include <cub/device/device_radix_sort.cuh>

#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/embedding.h"

namespace convoy::cuda {
namespace {

template <typename T, int N>
__global__ void embedding_kernel(const std::int32_t* ids, const T* table, const std::int32_t* positions,
                                 const T* position_table, T* out, std::int64_t packs, std::int64_t width) {
  const std::int64_t p = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (p >= packs) return;
  const std::int64_t token = p / (width / N), column = p % (width / N) * N;
  auto row = load_pack<N>(table + ids[token] * width + column);
  if (positions != nullptr) {
    const auto other = load_pack<N>(position_table + positions[token] * width + column);
#pragma unroll
    for (int i = 0; i < N; ++i) row.v[i] = narrow<T>(widen(row.v[i]) + widen(other.v[i]));
  }
  store_pack(out + token * width + column, row);
}

__global__ void number_kernel(std::int32_t* tokens, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) tokens[i] = i;
}

// A run of equal ids longer than this is summed by several warps, a piece each: all of a recording's tokens have one
// id.
constexpr int kPiece = 32;  // the lanes of a warp

// The first place in ids [count], which rise, from `low` on whose id is `id` or more.
__device__ inline std::int64_t lower_bound(const std::int32_t* ids, std::int64_t low, std::int64_t high,
                                           std::int32_t id) {
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (ids[middle] < id)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Where the sum of the piece that begins at `place` waits: of every kPiece places at most one begins a long run, and
// one another piece of a long run.
__device__ inline std::int64_t slot_of(std::int64_t place, bool begins) {
  return 2 * (place / kPiece) + (begins ? 0 : 1);
}

// Warp (x, y) takes the piece that begins at sorted place x, if one does, and columns y·32·N….
template <typename T, int N>
__global__ void pieces_kernel(const T* dx, const std::int32_t* ids, const std::int32_t* tokens, std::int64_t count,
                              std::int64_t width, std::int64_t pad_id, float* sum, float* pieces) {
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (place >= count) return;
  const std::int32_t id = ids[place];
  if (id == pad_id) return;
  const bool begins = place == 0 || ids[place - 1] != id;
  if (!begins && (place < kPiece || ids[place - kPiece] != id)) return;  // within the first piece
  if (!begins && (place - lower_bound(ids, 0, place, id)) % kPiece != 0) return;
  // The piece goes as far as the id, and no further than kPiece tokens; a lane looks at each.
  const std::int64_t mine = place + threadIdx.x;
  const unsigned alike = __ballot_sync(~0u, mine < count && ids[mine] == id);
  const int length = alike == ~0u ? kPiece : __ffs(static_cast<int>(~alike)) - 1;
  const bool whole = begins && (length < kPiece || place + kPiece >= count || ids[place + kPiece] != id);
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * 32 + threadIdx.x) * N;
  if (column >= width) return;
  float total[N] = {};
#pragma unroll 4
  for (int k = 0; k < length; ++k) {
    const auto pack = load_pack<N>(dx + static_cast<std::int64_t>(tokens[place + k]) * width + column);
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] += widen(pack.v[i]);
  }
  Pack<float, N> result{};
  float* to = pieces + slot_of(place, begins) * width + column;
  if (whole) {
    to = sum + id * width + column;
    result = load_pack<N>(to);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) result.v[i] += total[i];
  store_pack(to, result);
}

// The pieces of the long run that begins at place x·kPiece or behind it, in order.
__global__ void long_runs_kernel(const std::int32_t* ids, std::int64_t count, std::int64_t width, std::int64_t pad_id,
                                 const float* pieces, float* sum) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  const std::int64_t window = static_cast<std::int64_t>(blockIdx.x) * kPiece;
  // A run that begins in the window and is long goes on behind it.
  const std::int64_t end = window + kPiece;
  if (end >= count || column >= width) return;
  const std::int32_t id = ids[end];
  if (id == pad_id) return;
  const std::int64_t begin = lower_bound(ids, window, end, id);
  if (begin == end || (begin == window && window > 0 && ids[window - 1] == id)) return;
  if (begin + kPiece >= count || ids[begin + kPiece] != id) return;
  float total = 0;
#pragma unroll 4
  for (std::int64_t p = begin; p < count && ids[p] == id; p += kPiece)
    total += pieces[slot_of(p, p == begin) * width + column];
  sum[id * width + column] += total;
}

std::size_t piece_bytes(std::int64_t count, std::int64_t width) {
  return static_cast<std::size_t>(2 * ceil_div(count, kPiece) * width) * sizeof(float);
}

std::size_t align(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

std::size_t sort_bytes(int count) {
  std::size_t bytes = 0;
  cub::DeviceRadixSort::SortPairs<std::int32_t, std::int32_t>(nullptr, bytes, nullptr, nullptr, nullptr, nullptr,
                                                              count);
  return bytes;
}

}  // namespace

void register_embedding(KernelRegistry& registry, Context& c) {
  registry.add<Embedding>([&c](const Embedding&, const KernelRequest& q) {
    return [&c, dtype = q.outputs[0].dtype, tokens = q.outputs[0].shape[0], width = q.outputs[0].shape[1],
            positions = q.has(3)](const KernelArguments& a) {
      if (tokens * width == 0) return;
      with_type(dtype, [&]<typename T>() {
        const auto run = [&]<int N>() {
          embedding_kernel<T, N><<<grid_of(tokens * width / N, 256), 256, 0, c.stream>>>(
              reinterpret_cast<const std::int32_t*>(a.inputs[0]), reinterpret_cast<const T*>(a.inputs[1]),
              positions ? reinterpret_cast<const std::int32_t*>(a.inputs[2]) : nullptr,
              positions ? reinterpret_cast<const T*>(a.inputs[3]) : nullptr, reinterpret_cast<T*>(a.outputs[0]),
              tokens * width / N, width);
        };
        constexpr int kWide = 16 / sizeof(T);
        width % kWide == 0 ? run.template operator()<kWide>() : run.template operator()<1>();
      });
      check_launch("embedding");
    };
  });
  registry.add<EmbeddingGrad>(
      [&c](const EmbeddingGrad& op, const KernelRequest& q) {
        int bits = 1;
        while ((std::int64_t{1} << bits) < op.rows) ++bits;
        const auto count = static_cast<int>(q.inputs[0]->shape[0]);
        return [&c, dtype = q.inputs[0]->dtype, count, width = q.inputs[0]->shape[1], pad = op.pad_id,
                accumulate = q.has(2), bytes = q.outputs[0].bytes(), bits,
                scratch = sort_bytes(count)](const KernelArguments& a) {
          if (!accumulate) check_cuda(cudaMemsetAsync(a.outputs[0], 0, bytes, c.stream), "embedding_grad");
          if (count == 0 || width == 0) return;
          const std::size_t array = align(static_cast<std::size_t>(count) * sizeof(std::int32_t));
          auto* ids = reinterpret_cast<std::int32_t*>(a.workspace);
          auto* order = reinterpret_cast<std::int32_t*>(a.workspace + array);
          auto* numbers = reinterpret_cast<std::int32_t*>(a.workspace + 2 * array);
          auto* pieces = reinterpret_cast<float*>(a.workspace + 3 * array);
          auto* sum = reinterpret_cast<float*>(a.outputs[0]);
          number_kernel<<<grid_of(count, 256), 256, 0, c.stream>>>(numbers, count);
          check_launch("embedding_grad");
          std::size_t room = scratch;
          check_cuda(cub::DeviceRadixSort::SortPairs(a.workspace + 3 * array + align(piece_bytes(count, width)), room,
                                                     reinterpret_cast<const std::int32_t*>(a.inputs[1]), ids, numbers,
                                                     order, count, 0, bits, c.stream),
                     "embedding_grad's sort");
          with_type(dtype, [&]<typename T>() {
            const auto run = [&]<int N>() {
              const dim3 grid(grid_of(count, 8), grid_of(width, 32 * N));
              pieces_kernel<T, N><<<grid, dim3(32, 8), 0, c.stream>>>(reinterpret_cast<const T*>(a.inputs[0]), ids,
                                                                      order, count, width, pad, sum, pieces);
            };
            constexpr int kWide = 16 / sizeof(T);
            width % kWide == 0 ? run.template operator()<kWide>() : run.template operator()<1>();
          });
          check_launch("embedding_grad");
          if (count > kPiece) {
            long_runs_kernel<<<dim3(grid_of(count, kPiece), grid_of(width, 128)), 128, 0, c.stream>>>(ids, count, width,
                                                                                                      pad, pieces, sum);
            check_launch("embedding_grad");
          }
        };
      },
      [](const EmbeddingGrad&, const KernelRequest& q) {
        const auto count = static_cast<int>(q.inputs[0]->shape[0]);
        return 3 * align(static_cast<std::size_t>(count) * sizeof(std::int32_t)) +
               align(piece_bytes(count, q.inputs[0]->shape[1])) + sort_bytes(count);
      });
}

}  // namespace convoy::cuda
