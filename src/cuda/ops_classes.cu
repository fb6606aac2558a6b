// The heads of classification and choice: few rows, few classes.
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/cross_entropy.h"
#include "graph/ops/select_rows.h"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kLossThreads = 1024;  // the one block that sums the losses, a warp an item

template <typename T, int N>
__global__ void select_kernel(const T* x, const std::int32_t* rows, T* y, std::int64_t packs, std::int64_t width) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= packs) return;
  const std::int64_t row = i / (width / N), column = (i - row * (width / N)) * N;
  store_pack(y + row * width + column, load_pack<N>(x + rows[row] * width + column));
}

// A thread has one column and adds the rows in their order: the same row may come twice.
template <typename T>
__global__ void select_grad_kernel(const T* dy, const std::int32_t* rows, T* dx, std::int64_t count,
                                   std::int64_t width) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (column >= width) return;
  for (std::int64_t r = 0; r < count; ++r) {
    T* to = dx + rows[r] * width + column;
    *to = narrow<T>(widen(*to) + widen(dy[r * width + column]));
  }
}

// What a warp finds of an item's scores: the first of the largest, and the logarithm of the sum of the exponentials.
struct Peak {
  std::int64_t at;
  float log_sum;
};
template <typename T>
__device__ Peak peak_of(const T* scores, std::int64_t classes) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float most = -INFINITY;
  std::int64_t at = classes;
  for (std::int64_t c = lane; c < classes; c += 32) {
    const float v = widen(scores[c]);
    if (at == classes || v > most) {
      most = v;
      at = c;
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(~0u, most, offset);
    const std::int64_t place = __shfl_xor_sync(~0u, at, offset);
    if (place < classes && (at == classes || other > most || (other == most && place < at))) {
      most = other;
      at = place;
    }
  }
  float sum = 0;
  for (std::int64_t c = lane; c < classes; c += 32) sum += expf(widen(scores[c]) - most);
  return {at, most + logf(warp_sum(sum))};
}

template <typename T>
__global__ void __launch_bounds__(kLossThreads)
    loss_kernel(const T* scores, const std::int32_t* labels, std::int64_t items, std::int64_t classes,
                float* statistics) {
  constexpr int kWarps = kLossThreads / 32;
  __shared__ double sums[3][kWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  double own[3] = {};
  for (std::int64_t i = warp; i < items; i += kWarps) {
    const std::int32_t label = labels[i];
    if (label < 0) continue;
    const Peak peak = peak_of(scores + i * classes, classes);
    own[0] += static_cast<double>(peak.log_sum - widen(scores[i * classes + label]));
    own[1] += 1;
    own[2] += peak.at == label ? 1 : 0;
  }
  if (lane == 0) {
    for (int s = 0; s < 3; ++s) sums[s][warp] = own[s];
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total[3] = {};
  for (int w = 0; w < kWarps; ++w) {
    for (int s = 0; s < 3; ++s) total[s] += sums[s][w];
  }
  statistics[kLossSum] = static_cast<float>(total[0]);
  statistics[kTargetCount] = static_cast<float>(total[1]);
  statistics[kCorrectCount] = static_cast<float>(total[2]);
  statistics[3] = 0;
}

// A warp an item; the gradient may take the place of the scores.
template <typename T>
__global__ void loss_grad_kernel(const T* scores, const std::int32_t* labels, const float* scale, T* gradient,
                                 std::int64_t items, std::int64_t classes) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (item >= items) return;
  const std::int32_t label = labels[item];
  const T* of = scores + item * classes;
  const float log_sum = label < 0 ? 0.0f : peak_of(of, classes).log_sum;
  __syncwarp();
  for (std::int64_t c = lane; c < classes; c += 32) {
    const float share = label < 0 ? 0.0f : expf(widen(of[c]) - log_sum) - (c == label ? 1.0f : 0.0f);
    gradient[item * classes + c] = narrow<T>(*scale * share);
  }
}

void register_select_rows(KernelRegistry& registry, Context& c) {
  registry.add<SelectRows>([&c](const SelectRows&, const KernelRequest& q) {
    return [&c, rows = q.outputs[0].shape[0], width = q.outputs[0].shape[1],
            dtype = q.outputs[0].dtype](const KernelArguments& a) {
      if (rows * width == 0) return;
      with_type(dtype, [&]<typename T>() {
        const auto run = [&]<int N>() {
          const std::int64_t packs = rows * (width / N);
          select_kernel<T, N><<<grid_of(packs, kBlock), kBlock, 0, c.stream>>>(
              reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const std::int32_t*>(a.inputs[1]),
              reinterpret_cast<T*>(a.outputs[0]), packs, width);
        };
        constexpr int kWide = 16 / sizeof(T);
        width % kWide == 0 ? run.template operator()<kWide>() : run.template operator()<1>();
      });
      check_launch("select_rows");
    };
  });
  registry.add<SelectRowsGrad>([&c](const SelectRowsGrad&, const KernelRequest& q) {
    return [&c, count = q.inputs[0]->shape[0], width = q.outputs[0].shape[1], bytes = q.outputs[0].bytes(),
            dtype = q.outputs[0].dtype, sums = q.has(2)](const KernelArguments& a) {
      if (!sums) {
        check_cuda(cudaMemsetAsync(a.outputs[0], 0, bytes, c.stream), "select_rows_grad");
      } else if (a.inputs[2] != a.outputs[0]) {
        check_cuda(cudaMemcpyAsync(a.outputs[0], a.inputs[2], bytes, cudaMemcpyDeviceToDevice, c.stream),
                   "select_rows_grad");
      }
      if (count * width == 0) return;
      with_type(dtype, [&]<typename T>() {
        select_grad_kernel<<<grid_of(width, kBlock), kBlock, 0, c.stream>>>(
            reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const std::int32_t*>(a.inputs[1]),
            reinterpret_cast<T*>(a.outputs[0]), count, width);
      });
      check_launch("select_rows_grad");
    };
  });
}

}  // namespace

void register_classes(KernelRegistry& registry, Context& c) {
  register_select_rows(registry, c);
  registry.add<CrossEntropy>([&c](const CrossEntropy& op, const KernelRequest& q) {
    return [&c, dtype = q.inputs[0]->dtype, items = q.inputs[1]->numel(),
            classes = op.classes](const KernelArguments& a) {
      with_type(dtype, [&]<typename T>() {
        loss_kernel<<<1, kLossThreads, 0, c.stream>>>(
            reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const std::int32_t*>(a.inputs[1]), items, classes,
            reinterpret_cast<float*>(a.outputs[0]));
      });
      check_launch("cross_entropy");
    };
  });
  registry.add<CrossEntropyGrad>([&c](const CrossEntropyGrad& op, const KernelRequest& q) {
    return [&c, dtype = q.inputs[0]->dtype, items = q.inputs[1]->numel(),
            classes = op.classes](const KernelArguments& a) {
      if (items == 0) return;
      with_type(dtype, [&]<typename T>() {
        loss_grad_kernel<<<grid_of(items * 32, kBlock), kBlock, 0, c.stream>>>(
            reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const std::int32_t*>(a.inputs[1]),
            reinterpret_cast<const float*>(a.inputs[2]), reinterpret_cast<T*>(a.outputs[0]), items, classes);
      });
      check_launch("cross_entropy_grad");
    };
  });
}

}  // namespace convoy::cuda
