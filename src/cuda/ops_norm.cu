// Normalisations. A block takes a row at a time and keeps it in registers; weight gradients are summed over the rows of
// a block, then over the blocks in order.
#include "cuda/column_sums.h"
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/norm.h"

namespace convoy::cuda {
namespace {

constexpr std::int64_t kGradBlocks = 1056;  // a function of nothing: the order of sums must not depend on the card

// How a row of `width` elements is cut: each of `threads` threads has kPacks packs of kPack elements.
template <typename T, typename F>
void with_row_cut(std::int64_t width, F&& f) {
  constexpr int kWide = 16 / sizeof(T);
  const auto by_packs = [&]<int N>() {
    const std::int64_t packs = width / N;
    const auto threads = [&](int per_thread) {
      return static_cast<int>(ceil_div(ceil_div(packs, per_thread), 32) * 32);
    };
    if (packs <= 512) return f.template operator()<N, 1>(threads(1));
    if (packs <= 1024) return f.template operator()<N, 2>(threads(2));
    if (packs <= 2048) return f.template operator()<N, 4>(threads(4));
    if (packs <= 8192) return f.template operator()<N, 16>(threads(16));
    throw internal_error("a norm over rows that are too long for the CUDA device");
  };
  width % kWide == 0 ? by_packs.template operator()<kWide>() : by_packs.template operator()<1>();
}

// kLayer: LayerNorm, else RMSNorm.
template <bool kLayer, typename T, int N, int P>
__global__ void norm_kernel(const T* x, const T* residual, T* sum, const T* weight, const T* bias, T* y,
                            float* mean_out, float* rstd_out, std::int64_t width, float eps) {
  __shared__ float shared[33];
  const std::int64_t row = blockIdx.x;
  const auto per_row = static_cast<float>(width);
  float values[P][N];
  float total = 0;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const std::int64_t column = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * N;
    if (column >= width) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[p][i] = 0;
      continue;
    }
    const std::int64_t at = row * width + column;
    auto pack = load_pack<N>(x + at);
    if (residual != nullptr) {
      const auto other = load_pack<N>(residual + at);
#pragma unroll
      for (int i = 0; i < N; ++i) pack.v[i] = narrow<T>(widen(pack.v[i]) + widen(other.v[i]));
      store_pack(sum + at, pack);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[p][i] = widen(pack.v[i]);
      total += kLayer ? values[p][i] : values[p][i] * values[p][i];
    }
  }
  total = block_sum(total, shared);
  float mean = 0, rstd;
  if constexpr (kLayer) {
    mean = total / per_row;
    float squares = 0;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if ((static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * N >= width) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) squares += (values[p][i] - mean) * (values[p][i] - mean);
    }
    __syncthreads();
    rstd = rsqrtf(block_sum(squares, shared) / per_row + eps);
  } else {
    rstd = rsqrtf(total / per_row + eps);
  }
  if (threadIdx.x == 0) {
    if (kLayer) mean_out[row] = mean;
    rstd_out[row] = rstd;
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const std::int64_t column = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * N;
    if (column >= width) continue;
    const auto w = load_pack<N>(weight + column);
    Pack<T, N> b{}, result;
    if constexpr (kLayer) b = load_pack<N>(bias + column);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float scaled = (values[p][i] - mean) * rstd * widen(w.v[i]);
      result.v[i] = narrow<T>(kLayer ? scaled + widen(b.v[i]) : scaled);
    }
    store_pack(y + row * width + column, result);
  }
}

// The sums of x and y over all threads of a block, each as block_sum has it; kBoth: else x alone. `shared` holds 66
// floats.
template <bool kBoth>
__device__ void block_sums(float& x, float& y, float* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  x = warp_sum(x);
  if (kBoth) y = warp_sum(y);
  if (lane == 0) {
    shared[warp] = x;
    if (kBoth) shared[33 + warp] = y;
  }
  __syncthreads();
  if (warp == 0) {
    x = warp_sum(lane < warps ? shared[lane] : 0.0f);
    if (kBoth) y = warp_sum(lane < warps ? shared[33 + lane] : 0.0f);
    if (lane == 0) {
      shared[32] = x;
      if (kBoth) shared[65] = y;
    }
  }
  __syncthreads();
  x = shared[32];
  if (kBoth) y = shared[65];
}

// A thread's part of what a row's gradient is made from.
template <typename T, int N, int P>
struct GradRow {
  Pack<T, N> dy[P], r[P], plus[P];
  __device__ void load(const T* dy_rows, const T* r_rows, const T* plus_rows, std::int64_t row, std::int64_t width) {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const std::int64_t column = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * N;
      if (column >= width) continue;
      dy[p] = load_pack<N>(dy_rows + row * width + column);
      r[p] = load_pack<N>(r_rows + row * width + column);
      if (plus_rows != nullptr) plus[p] = load_pack<N>(plus_rows + row * width + column);
    }
  }
};

// partial: [blocks, width] sums of dy·x̂, and behind them for LayerNorm as much of dy.
template <bool kLayer, typename T, int N, int P>
__global__ void norm_grad_kernel(const T* dy, const T* r, const T* weight, const float* mean, const float* rstd,
                                 const T* plus, T* dr, float* partial, std::int64_t rows, std::int64_t width) {
  __shared__ float shared[66];
  // Short rows: the next one comes in while this one's sums are made. Long ones have too much to hold.
  constexpr bool kAhead = P <= 2;
  GradRow<T, N, kAhead ? P : 1> now{}, next{};
  if (kAhead && blockIdx.x < rows) now.load(dy, r, plus, blockIdx.x, width);
  const auto per_row = static_cast<float>(width);
  float dweight[P][N] = {}, dbias[kLayer ? P : 1][N] = {};
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float scale = rstd[row], shift = kLayer ? mean[row] : 0.0f;
    float normal[P][N], weighted[P][N];
    float dot = 0, total = 0;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const std::int64_t column = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * N;
      if (column >= width) continue;
      const auto d = kAhead ? now.dy[kAhead ? p : 0] : load_pack<N>(dy + row * width + column);
      const auto v = kAhead ? now.r[kAhead ? p : 0] : load_pack<N>(r + row * width + column);
      const auto w = load_pack<N>(weight + column);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float gradient = widen(d.v[i]);
        normal[p][i] = (widen(v.v[i]) - shift) * scale;
        weighted[p][i] = gradient * widen(w.v[i]);
        dot += weighted[p][i] * normal[p][i];
        if (kLayer) total += weighted[p][i];
        dweight[p][i] += gradient * normal[p][i];
        if (kLayer) dbias[p][i] += gradient;
      }
    }
    if (kAhead && row + gridDim.x < rows) next.load(dy, r, plus, row + gridDim.x, width);
    block_sums<kLayer>(dot, total, shared);
    dot /= per_row;
    total /= per_row;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const std::int64_t column = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * N;
      if (column >= width) continue;
      const std::int64_t at = row * width + column;
      Pack<T, N> other{}, result;
      if (plus != nullptr) other = kAhead ? now.plus[kAhead ? p : 0] : load_pack<N>(plus + at);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float gradient = scale * (weighted[p][i] - normal[p][i] * dot - total);
        result.v[i] = narrow<T>(plus != nullptr ? gradient + widen(other.v[i]) : gradient);
      }
      store_pack(dr + at, result);
    }
    if (kAhead) now = next;
    __syncthreads();  // the next row's sums use the same shared memory
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const std::int64_t column = (static_cast<std::int64_t>(p) * blockDim.x + threadIdx.x) * N;
    if (column >= width) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      partial[blockIdx.x * width + column + i] = dweight[p][i];
      if constexpr (kLayer) partial[(gridDim.x + blockIdx.x) * width + column + i] = dbias[p][i];
    }
  }
}

template <typename T>
const T* at(const KernelArguments& a, std::size_t i) {
  return a.inputs.size() > i ? reinterpret_cast<const T*>(a.inputs[i]) : nullptr;
}
template <typename T>
T* out(const KernelArguments& a, std::size_t i) {
  return a.outputs.size() > i ? reinterpret_cast<T*>(a.outputs[i]) : nullptr;
}

void register_rmsnorm(KernelRegistry& registry, Context& c) {
  registry.add<RmsNorm>([&c](const RmsNorm& op, const KernelRequest& q) {
    return [&c, dtype = q.outputs[0].dtype, rows = q.outputs[0].shape[0], width = q.outputs[0].shape[1],
            eps = static_cast<float>(op.eps)](const KernelArguments& a) {
      if (rows == 0) return;
      with_type(dtype, [&]<typename T>() {
        with_row_cut<T>(width, [&]<int N, int P>(int threads) {
          norm_kernel<false, T, N, P><<<static_cast<unsigned>(rows), threads, 0, c.stream>>>(
              at<T>(a, 0), at<T>(a, 2), out<T>(a, 2), at<T>(a, 1), nullptr, out<T>(a, 0), nullptr, out<float>(a, 1),
              width, eps);
        });
      });
      check_launch("rmsnorm");
    };
  });
  registry.add<RmsNormGrad>(
      [&c](const RmsNormGrad& op, const KernelRequest& q) {
        return [&c, dtype = q.outputs[0].dtype, rows = q.outputs[0].shape[0], width = q.outputs[0].shape[1],
                accumulate = q.has(5), dweight = op.dweight](const KernelArguments& a) {
          auto* partial = reinterpret_cast<float*>(a.workspace);
          const std::int64_t blocks = std::min(rows, kGradBlocks);
          with_type(dtype, [&]<typename T>() {
            with_row_cut<T>(width, [&]<int N, int P>(int threads) {
              norm_grad_kernel<false, T, N, P><<<static_cast<unsigned>(blocks), threads, 0, c.stream>>>(
                  at<T>(a, 0), at<T>(a, 1), at<T>(a, 2), nullptr, at<float>(a, 3), at<T>(a, 4), out<T>(a, 0), partial,
                  rows, width);
            });
          });
          check_launch("rmsnorm_grad");
          if (!dweight) return;
          sum_partials(partial, blocks, width, width, accumulate, out<float>(a, 1), c.stream);
        };
      },
      [](const RmsNormGrad&, const KernelRequest& q) {
        return static_cast<std::size_t>(std::min(q.outputs[0].shape[0], kGradBlocks) * q.outputs[0].shape[1]) *
               sizeof(float);
      });
}

void register_layernorm(KernelRegistry& registry, Context& c) {
  registry.add<LayerNorm>([&c](const LayerNorm& op, const KernelRequest& q) {
    return [&c, dtype = q.outputs[0].dtype, rows = q.outputs[0].shape[0], width = q.outputs[0].shape[1],
            eps = static_cast<float>(op.eps)](const KernelArguments& a) {
      if (rows == 0) return;
      with_type(dtype, [&]<typename T>() {
        with_row_cut<T>(width, [&]<int N, int P>(int threads) {
          norm_kernel<true, T, N, P><<<static_cast<unsigned>(rows), threads, 0, c.stream>>>(
              at<T>(a, 0), at<T>(a, 3), out<T>(a, 3), at<T>(a, 1), at<T>(a, 2), out<T>(a, 0), out<float>(a, 1),
              out<float>(a, 2), width, eps);
        });
      });
      check_launch("layernorm");
    };
  });
  registry.add<LayerNormGrad>(
      [&c](const LayerNormGrad& op, const KernelRequest& q) {
        return [&c, dtype = q.outputs[0].dtype, rows = q.outputs[0].shape[0], width = q.outputs[0].shape[1],
                add_weight = q.has(6), add_bias = q.has(7), dweight = op.dweight](const KernelArguments& a) {
          auto* partial = reinterpret_cast<float*>(a.workspace);
          const std::int64_t blocks = std::min(rows, kGradBlocks);
          with_type(dtype, [&]<typename T>() {
            with_row_cut<T>(width, [&]<int N, int P>(int threads) {
              norm_grad_kernel<true, T, N, P><<<static_cast<unsigned>(blocks), threads, 0, c.stream>>>(
                  at<T>(a, 0), at<T>(a, 1), at<T>(a, 2), at<float>(a, 3), at<float>(a, 4), at<T>(a, 5), out<T>(a, 0),
                  partial, rows, width);
            });
          });
          check_launch("layernorm_grad");
          if (!dweight) return;
          sum_partials(partial, blocks, width, width, add_weight, out<float>(a, 1), c.stream);
          sum_partials(partial + blocks * width, blocks, width, width, add_bias, out<float>(a, 2), c.stream);
        };
      },
      [](const LayerNormGrad&, const KernelRequest& q) {
        return static_cast<std::size_t>(std::min(q.outputs[0].shape[0], kGradBlocks) * q.outputs[0].shape[1]) * 2 *
               sizeof(float);
      });
}

}  // namespace

void register_norms(KernelRegistry& registry, Context& c) {
  register_rmsnorm(registry, c);
  register_layernorm(registry, c);
  register_qk_norm(registry, c);
}

}  // namespace convoy::cuda
