// The rotary embedding.
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/rotary.h"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 256;

struct RotaryShape {
  std::int64_t rows, width;
  int heads, head_dim, half;
  float sign;  // -1 for the inverse
};

// N pairs a thread: elements i…i+N-1 and their partners half a rotation away.
template <typename T, int N>
__global__ void half_kernel(T* x, const float* cosines, const float* sines, const std::int32_t* positions,
                            RotaryShape s) {
  const int per_head = s.half / N;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const std::int64_t row = i / (s.heads * per_head);
  if (row >= s.rows) return;
  const int rest = static_cast<int>(i - row * (s.heads * per_head));
  const int head = rest / per_head, pair = rest % per_head * N;
  T* at = x + row * s.width + head * s.head_dim + pair;
  const std::int64_t table = static_cast<std::int64_t>(positions[row]) * s.half + pair;
  auto a = load_pack<N>(at), b = load_pack<N>(at + s.half);
  const auto c = load_pack<N>(cosines + table), d = load_pack<N>(sines + table);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float p = widen(a.v[j]), q = widen(b.v[j]), sine = s.sign * d.v[j];
    a.v[j] = narrow<T>(p * c.v[j] - q * sine);
    b.v[j] = narrow<T>(q * c.v[j] + p * sine);
  }
  store_pack(at, a);
  store_pack(at + s.half, b);
}

// N pairs of neighbours a thread.
template <typename T, int N>
__global__ void interleaved_kernel(T* x, const float* cosines, const float* sines, const std::int32_t* positions,
                                   RotaryShape s) {
  const int per_head = s.half / N;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const std::int64_t row = i / (s.heads * per_head);
  if (row >= s.rows) return;
  const int rest = static_cast<int>(i - row * (s.heads * per_head));
  const int head = rest / per_head, pair = rest % per_head * N;
  T* at = x + row * s.width + head * s.head_dim + 2 * pair;
  const std::int64_t table = static_cast<std::int64_t>(positions[row]) * s.half + pair;
  auto v = load_pack<2 * N>(at);
  const auto c = load_pack<N>(cosines + table), d = load_pack<N>(sines + table);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float p = widen(v.v[2 * j]), q = widen(v.v[2 * j + 1]), sine = s.sign * d.v[j];
    v.v[2 * j] = narrow<T>(p * c.v[j] - q * sine);
    v.v[2 * j + 1] = narrow<T>(q * c.v[j] + p * sine);
  }
  store_pack(at, v);
}

template <typename T>
void launch(const RotaryShape& s, RotaryPairing pairing, T* x, const float* cosines, const float* sines,
            const std::int32_t* positions, cudaStream_t stream) {
  const auto run = [&]<int N>() {
    const unsigned grid = grid_of(s.rows * s.heads * (s.half / N), kBlock);
    if (pairing == RotaryPairing::kHalf) {
      half_kernel<T, N><<<grid, kBlock, 0, stream>>>(x, cosines, sines, positions, s);
    } else {
      interleaved_kernel<T, N><<<grid, kBlock, 0, stream>>>(x, cosines, sines, positions, s);
    }
  };
  constexpr int kWide = 16 / sizeof(T);
  // Every pack starts at a multiple of 16 bytes only if rows, heads and halves do.
  const auto fits = [&](int n) { return s.width % n == 0 && s.head_dim % n == 0 && s.half % n == 0; };
  if (fits(kWide)) {
    run.template operator()<kWide>();
  } else {
    run.template operator()<1>();
  }
}

}  // namespace

void register_rotary(KernelRegistry& registry, Context& c) {
  registry.add<Rotary>([&c](const Rotary& op, const KernelRequest& q) {
    const TensorSpec& spec = q.outputs[0];
    RotaryShape shape{spec.shape[0],
                      spec.shape[1],
                      static_cast<int>(op.heads),
                      static_cast<int>(op.head_dim),
                      static_cast<int>(op.rotary_dim / 2),
                      op.inverse ? -1.0f : 1.0f};
    return [&c, shape, dtype = spec.dtype, bytes = spec.bytes(), pairing = op.pairing](const KernelArguments& a) {
      if (a.inputs[0] != a.outputs[0]) {
        check_cuda(cudaMemcpyAsync(a.outputs[0], a.inputs[0], bytes, cudaMemcpyDeviceToDevice, c.stream), "rotary");
      }
      if (shape.rows * shape.heads * shape.half == 0) return;
      with_type(dtype, [&]<typename T>() {
        launch(shape, pairing, reinterpret_cast<T*>(a.outputs[0]), reinterpret_cast<const float*>(a.inputs[1]),
               reinterpret_cast<const float*>(a.inputs[2]), reinterpret_cast<const std::int32_t*>(a.inputs[3]),
               c.stream);
      });
      check_launch("rotary");
    };
  });
}

}  // namespace convoy::cuda
