// Normalisations. A block takes a row and keeps it in registers.
#include "cuda/norm_grad.h"
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/norm.h"

namespace convoy::cuda {
namespace {

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

template <typename T>
const T* at(const KernelArguments& a, std::size_t i) {
  return a.inputs.size() > i ? reinterpret_cast<const T*>(a.inputs[i]) : nullptr;
}
template <typename T>
T* out(const KernelArguments& a, std::size_t i) {
  return a.outputs.size() > i ? reinterpret_cast<T*>(a.outputs[i]) : nullptr;
}

// Op: RmsNormGrad, or LayerNormGrad, which has a mean and the bias's gradient more.
template <typename Op>
void register_norm_grad(KernelRegistry& registry, Context& c) {
  constexpr bool kLayer = std::is_same_v<Op, LayerNormGrad>;
  constexpr std::size_t kMore = kLayer ? 1 : 0;
  registry.add<Op>(
      [&c](const Op& op, const KernelRequest& q) {
        return [&c, dtype = q.outputs[0].dtype, rows = q.outputs[0].shape[0], width = q.outputs[0].shape[1],
                add_weight = q.has(5 + kMore), add_bias = kLayer && q.has(7),
                dweight = op.dweight](const KernelArguments& a) {
          NormGrad of;
          of.dy = a.inputs[0];
          of.r = a.inputs[1];
          of.weight = a.inputs[2];
          of.mean = kLayer ? at<float>(a, 3) : nullptr;
          of.rstd = at<float>(a, 3 + kMore);
          of.plus = at<std::byte>(a, 4 + kMore);
          of.dr = a.outputs[0];
          of.dweight = dweight ? out<float>(a, 1) : nullptr;
          of.dbias = kLayer && dweight ? out<float>(a, 2) : nullptr;
          of.add_weight = add_weight;
          of.add_bias = add_bias;
          norm_grad(dtype, of, rows, width, a.workspace, c.stream);
        };
      },
      [](const Op&, const KernelRequest& q) {
        return norm_grad_workspace(q.outputs[0].dtype, kLayer, q.outputs[0].shape[0], q.outputs[0].shape[1]);
      });
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
  register_norm_grad<RmsNormGrad>(registry, c);
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
  register_norm_grad<LayerNormGrad>(registry, c);
}

}  // namespace

void register_norms(KernelRegistry& registry, Context& c) {
  register_rmsnorm(registry, c);
  register_layernorm(registry, c);
  register_qk_norm(registry, c);
}

}  // namespace convoy::cuda
