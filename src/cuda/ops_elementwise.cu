// Elementwise operations, activations and dropout.
#include "cuda/activation.h"
#include "cuda/numeric.cuh"
#include "cuda/philox.cuh"
#include "cuda/registry.h"
#include "graph/ops/activation.h"
#include "graph/ops/elementwise.h"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 256;

struct AddOf {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct ScaleBy {
  float factor;
  __device__ float operator()(float a, float) const { return factor * a; }
};

// The normal distribution's function, of which erf(x/√2) is a part, with exp(-½x²) that its slope needs too. Better than
// 2e-7 (Abramowitz and Stegun, 7.1.26), which 16-bit results do not show; a third of erff's time.
__device__ float fast_normal(float x, float* bell) {
  const float t = __fdividef(1.0f, 1.0f + 0.3275911f * 0.7071067811865476f * fabsf(x));
  *bell = __expf(-0.5f * x * x);
  float tail = 1.061405429f;
  tail = tail * t - 1.453152027f;
  tail = tail * t + 1.421413741f;
  tail = tail * t - 0.284496736f;
  tail = tail * t + 0.254829592f;
  tail *= 0.5f * t * *bell;
  return x < 0 ? tail : 1.0f - tail;
}

// kFast: for results of 16 bits.
template <bool kTanh, bool kFast>
__device__ float gelu_value(float x) {
  if constexpr (!kTanh && kFast) {
    float bell;
    return x * fast_normal(x, &bell);
  } else if constexpr (kTanh) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
  } else {
    return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
  }
}
template <bool kTanh, bool kFast>
__device__ float gelu_slope(float x) {
  if constexpr (!kTanh && kFast) {
    float bell;
    const float below = fast_normal(x, &bell);
    return below + x * 0.3989422804014327f * bell;
  } else if constexpr (kTanh) {
    const float t = tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * x * x);
  } else {
    return 0.5f * (1.0f + erff(x * 0.7071067811865476f)) + x * 0.3989422804014327f * expf(-0.5f * x * x);
  }
}
template <bool kTanh, bool kFast>
struct GeluOf {
  __device__ float operator()(float x, float) const { return gelu_value<kTanh, kFast>(x); }
};
template <bool kTanh, bool kFast>
struct GeluGradOf {
  __device__ float operator()(float dy, float x) const { return dy * gelu_slope<kTanh, kFast>(x); }
};

// y[i] = f(a[i], b[i]); b may be null.
template <typename T, int N, typename F>
__global__ void map_kernel(const T* a, const T* b, T* y, std::int64_t n, F f) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x) * N;
  if (i + N <= n) {
    const auto x = load_pack<N>(a + i);
    auto other = x;
    if (b != nullptr) other = load_pack<N>(b + i);
    Pack<T, N> result;
#pragma unroll
    for (int j = 0; j < N; ++j) result.v[j] = narrow<T>(f(widen(x.v[j]), widen(other.v[j])));
    store_pack(y + i, result);
  } else {
    for (std::int64_t j = i; j < n; ++j) y[j] = narrow<T>(f(widen(a[j]), b != nullptr ? widen(b[j]) : 0.0f));
  }
}

template <typename F>
void map(DType dtype, const void* a, const void* b, void* y, std::int64_t n, const F& f, cudaStream_t stream) {
  if (n == 0) return;
  with_type(dtype, [&]<typename T>() {
    constexpr int N = 16 / sizeof(T);
    map_kernel<T, N><<<grid_of(ceil_div(n, N), kBlock), kBlock, 0, stream>>>(
        static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y), n, f);
  });
  check_launch("an elementwise operation");
}

template <typename T, int N>
__global__ void swiglu_kernel(const T* gate_up, T* y, std::int64_t packs, std::int64_t f) {
  const std::int64_t p = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (p >= packs) return;
  const std::int64_t row = p / (f / N), column = p % (f / N) * N;
  const T* from = gate_up + row * 2 * f + column;
  const auto gate = load_pack<N>(from), up = load_pack<N>(from + f);
  Pack<T, N> result;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float g = widen(gate.v[j]);
    result.v[j] = narrow<T>(g / (1.0f + __expf(-g)) * widen(up.v[j]));
  }
  store_pack(y + row * f + column, result);
}

template <typename T, int N>
__global__ void swiglu_grad_kernel(const T* dy, const T* gate_up, T* out, std::int64_t packs, std::int64_t f) {
  const std::int64_t p = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (p >= packs) return;
  const std::int64_t row = p / (f / N), column = p % (f / N) * N;
  const std::int64_t at = row * 2 * f + column;
  const auto gate = load_pack<N>(gate_up + at), up = load_pack<N>(gate_up + at + f);
  const auto d = load_pack<N>(dy + row * f + column);
  Pack<T, N> dgate, dup;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float g = widen(gate.v[j]), u = widen(up.v[j]), e = widen(d.v[j]);
    const float s = 1.0f / (1.0f + __expf(-g));
    dgate.v[j] = narrow<T>(e * u * s * (1.0f + g * (1.0f - s)));
    dup.v[j] = narrow<T>(e * g * s);
  }
  store_pack(out + at, dgate);
  store_pack(out + at + f, dup);
}

// One block of four random numbers a thread.
template <typename T>
__global__ void dropout_kernel(const T* x, T* y, std::int64_t rows, std::int64_t width, float p, float keep_scale,
                               std::uint32_t key0, std::uint32_t key1, std::uint32_t use, const std::int64_t* keys) {
  const std::int64_t per_row = (width + 3) / 4;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= rows * per_row) return;
  const std::int64_t row = i / per_row, quad = i % per_row;
  const auto key = static_cast<std::uint64_t>(keys[row]);
  const uint4 random = philox(make_uint4(static_cast<std::uint32_t>(quad), use, static_cast<std::uint32_t>(key),
                                         static_cast<std::uint32_t>(key >> 32)),
                              key0, key1);
  const std::uint32_t bits[4] = {random.x, random.y, random.z, random.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::int64_t column = quad * 4 + j;
    if (column >= width) break;
    const std::int64_t at = row * width + column;
    y[at] = narrow<T>(to_unit(bits[j]) >= p ? keep_scale * widen(x[at]) : 0.0f);
  }
}

void register_activations(KernelRegistry& registry, Context& c) {
  registry.add<SwiGlu>([&c](const SwiGlu&, const KernelRequest& q) {
    return [&c, dtype = q.outputs[0].dtype, rows = q.outputs[0].shape[0],
            f = q.outputs[0].shape[1]](const KernelArguments& a) {
      if (rows * f == 0) return;
      with_type(dtype, [&]<typename T>() {
        constexpr int N = 16 / sizeof(T);
        const auto run = [&]<int M>() {
          swiglu_kernel<T, M><<<grid_of(rows * f / M, kBlock), kBlock, 0, c.stream>>>(
              reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<T*>(a.outputs[0]), rows * f / M, f);
        };
        f % N == 0 ? run.template operator()<N>() : run.template operator()<1>();
      });
      check_launch("swiglu");
    };
  });
  registry.add<SwiGluGrad>([&c](const SwiGluGrad&, const KernelRequest& q) {
    return [&c, dtype = q.outputs[0].dtype, rows = q.outputs[0].shape[0],
            f = q.outputs[0].shape[1] / 2](const KernelArguments& a) {
      if (rows * f == 0) return;
      with_type(dtype, [&]<typename T>() {
        constexpr int N = 16 / sizeof(T);
        const auto run = [&]<int M>() {
          swiglu_grad_kernel<T, M><<<grid_of(rows * f / M, kBlock), kBlock, 0, c.stream>>>(
              reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const T*>(a.inputs[1]),
              reinterpret_cast<T*>(a.outputs[0]), rows * f / M, f);
        };
        f % N == 0 ? run.template operator()<N>() : run.template operator()<1>();
      });
      check_launch("swiglu_grad");
    };
  });
  registry.add<Gelu>([&c](const Gelu& op, const KernelRequest& q) {
    return [&c, dtype = q.outputs[0].dtype, n = q.outputs[0].numel(), tanh = op.tanh](const KernelArguments& a) {
      gelu(dtype, a.inputs[0], a.outputs[0], n, tanh, c.stream);
    };
  });
  registry.add<GeluGrad>([&c](const GeluGrad& op, const KernelRequest& q) {
    return [&c, dtype = q.outputs[0].dtype, n = q.outputs[0].numel(), tanh = op.tanh](const KernelArguments& a) {
      if (tanh)
        map(dtype, a.inputs[0], a.inputs[1], a.outputs[0], n, GeluGradOf<true, false>{}, c.stream);
      else if (size_of(dtype) == 2)
        map(dtype, a.inputs[0], a.inputs[1], a.outputs[0], n, GeluGradOf<false, true>{}, c.stream);
      else
        map(dtype, a.inputs[0], a.inputs[1], a.outputs[0], n, GeluGradOf<false, false>{}, c.stream);
    };
  });
}

}  // namespace

void gelu(DType dtype, const void* x, void* y, std::int64_t n, bool tanh_form, cudaStream_t stream) {
  if (tanh_form)
    map(dtype, x, nullptr, y, n, GeluOf<true, false>{}, stream);
  else if (size_of(dtype) == 2)
    map(dtype, x, nullptr, y, n, GeluOf<false, true>{}, stream);
  else
    map(dtype, x, nullptr, y, n, GeluOf<false, false>{}, stream);
}

void register_elementwise(KernelRegistry& registry, Context& c) {
  registry.add<Add>([&c](const Add&, const KernelRequest& q) {
    return [&c, dtype = q.outputs[0].dtype, n = q.outputs[0].numel()](const KernelArguments& a) {
      map(dtype, a.inputs[0], a.inputs[1], a.outputs[0], n, AddOf{}, c.stream);
    };
  });
  registry.add<Scale>([&c](const Scale& op, const KernelRequest& q) {
    return [&c, dtype = q.outputs[0].dtype, n = q.outputs[0].numel(),
            factor = static_cast<float>(op.factor)](const KernelArguments& a) {
      map(dtype, a.inputs[0], nullptr, a.outputs[0], n, ScaleBy{factor}, c.stream);
    };
  });
  registry.add<Zeros>([&c](const Zeros& op, const KernelRequest&) {
    return [&c, bytes = op.spec.bytes()](const KernelArguments& a) {
      check_cuda(cudaMemsetAsync(a.outputs[0], 0, bytes, c.stream), "zeros");
    };
  });
  registry.add<Dropout>([&c](const Dropout& op, const KernelRequest& q) {
    return [&c, op, dtype = q.outputs[0].dtype, rows = q.outputs[0].shape[0],
            width = q.outputs[0].shape[1]](const KernelArguments& a) {
      if (rows * width == 0) return;
      with_type(dtype, [&]<typename T>() {
        dropout_kernel<<<grid_of(rows * ceil_div(width, 4), kBlock), kBlock, 0, c.stream>>>(
            reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<T*>(a.outputs[0]), rows, width, op.p,
            1.0f / (1.0f - op.p), static_cast<std::uint32_t>(op.seed), static_cast<std::uint32_t>(op.seed >> 32), op.use,
            reinterpret_cast<const std::int64_t*>(a.inputs[1]));
      });
      check_launch("dropout");
    };
  });
  register_activations(registry, c);
}

}  // namespace convoy::cuda
