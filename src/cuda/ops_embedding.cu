// Table look-ups and their gradients. Tokens are sorted by id, stably; a warp adds the rows of one id in token order.
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

// Warp (x, y) takes the id that begins at sorted place x, if one does, and columns y·32·N….
template <typename T, int N>
__global__ void embedding_grad_kernel(const T* dx, const std::int32_t* ids, const std::int32_t* tokens,
                                      std::int64_t count, std::int64_t width, std::int64_t pad_id, float* sum) {
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (place >= count) return;
  const std::int32_t id = ids[place];
  if (id == pad_id || (place > 0 && ids[place - 1] == id)) return;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * 32 + threadIdx.x) * N;
  if (column >= width) return;
  float total[N] = {};
  for (std::int64_t p = place; p < count && ids[p] == id; ++p) {
    const auto pack = load_pack<N>(dx + static_cast<std::int64_t>(tokens[p]) * width + column);
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] += widen(pack.v[i]);
  }
  float* to = sum + id * width + column;
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] += total[i];
}

std::size_t align(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

std::size_t sort_bytes(int count) {
  std::size_t bytes = 0;
  cub::DeviceRadixSort::SortPairs<std::int32_t, std::int32_t>(nullptr, bytes, nullptr, nullptr, nullptr, nullptr, count);
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
          number_kernel<<<grid_of(count, 256), 256, 0, c.stream>>>(numbers, count);
          check_launch("embedding_grad");
          std::size_t room = scratch;
          check_cuda(cub::DeviceRadixSort::SortPairs(a.workspace + 3 * array, room,
                                                     reinterpret_cast<const std::int32_t*>(a.inputs[1]), ids, numbers,
                                                     order, count, 0, bits, c.stream),
                     "embedding_grad's sort");
          with_type(dtype, [&]<typename T>() {
            const auto run = [&]<int N>() {
              const dim3 grid(grid_of(count, 8), grid_of(width, 32 * N));
              embedding_grad_kernel<T, N><<<grid, dim3(32, 8), 0, c.stream>>>(
                  reinterpret_cast<const T*>(a.inputs[0]), ids, order, count, width, pad,
                  reinterpret_cast<float*>(a.outputs[0]));
            };
            constexpr int kWide = 16 / sizeof(T);
            width % kWide == 0 ? run.template operator()<kWide>() : run.template operator()<1>();
          });
          check_launch("embedding_grad");
        };
      },
      [](const EmbeddingGrad&, const KernelRequest& q) {
        const auto count = static_cast<int>(q.inputs[0]->shape[0]);
        return 3 * align(static_cast<std::size_t>(count) * sizeof(std::int32_t)) + sort_bytes(count);
      });
}

}  // namespace convoy::cuda
