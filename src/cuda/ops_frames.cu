// What audio encoders add: convolution over time as a matrix product, reshaped frames, rows that take the place of
// others, biases of fused products.
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/frames.h"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kTaps = static_cast<int>(kConvolutionTaps);

// The frames of windows before and after a convolution.
struct Windows {
  std::int64_t frames, out, channels;
  int stride;
};

// N channels a thread: the frames of their taps come in one after the other and leave interleaved.
template <typename T, int N>
__global__ void unfold_kernel(const T* x, T* y, Windows w, std::int64_t threads) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= threads) return;
  const std::int64_t per_row = w.channels / N, row = i / per_row, channel = (i - row * per_row) * N;
  const std::int64_t window = row / w.out, first = (row - window * w.out) * w.stride - 1;
  Pack<T, N> taps[kTaps];
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    const std::int64_t frame = first + k;
    if (frame >= 0 && frame < w.frames) {
      taps[k] = load_pack<N>(x + (window * w.frames + frame) * w.channels + channel);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) taps[k].v[j] = narrow<T>(0.0f);
    }
  }
  T* to = y + (row * w.channels + channel) * kTaps;
#pragma unroll
  for (int piece = 0; piece < kTaps; ++piece) {
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.v[j] = taps[(piece * N + j) % kTaps].v[(piece * N + j) / kTaps];
    store_pack(to + piece * N, out);
  }
}

// N channels of an input frame a thread, which gathers what the at most three output frames that saw it give.
template <typename T, int N>
__global__ void fold_kernel(const T* dy, T* dx, Windows w, std::int64_t threads) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= threads) return;
  const std::int64_t per_row = w.channels / N, row = i / per_row, channel = (i - row * per_row) * N;
  const std::int64_t window = row / w.frames, frame = row - window * w.frames;
  float sum[N] = {};
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    const std::int64_t at = frame + 1 - k;  // stride times the output frame
    if (at < 0 || at % w.stride != 0 || at / w.stride >= w.out) continue;
    const T* from = dy + ((window * w.out + at / w.stride) * w.channels + channel) * kTaps;
    Pack<T, N> pieces[kTaps];
#pragma unroll
    for (int piece = 0; piece < kTaps; ++piece) pieces[piece] = load_pack<N>(from + piece * N);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += widen(pieces[(j * kTaps + k) / N].v[(j * kTaps + k) % N]);
  }
  Pack<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) out.v[j] = narrow<T>(sum[j]);
  store_pack(dx + row * w.channels + channel, out);
}

void register_convolution(KernelRegistry& registry, Context& c) {
  registry.add<Unfold>([&c](const Unfold& op, const KernelRequest& q) {
    const Windows w{op.frames, convolved_frames(op.frames, op.stride), q.inputs[0]->shape[1],
                    static_cast<int>(op.stride)};
    return [&c, w, rows = q.outputs[0].shape[0], dtype = q.outputs[0].dtype](const KernelArguments& a) {
      if (rows * w.channels == 0) return;
      with_type(dtype, [&]<typename T>() {
        const auto run = [&]<int N>() {
          const std::int64_t threads = rows * (w.channels / N);
          unfold_kernel<T, N><<<grid_of(threads, kBlock), kBlock, 0, c.stream>>>(
              reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<T*>(a.outputs[0]), w, threads);
        };
        constexpr int kWide = 16 / sizeof(T);
        w.channels % kWide == 0 ? run.template operator()<kWide>() : run.template operator()<1>();
      });
      check_launch("unfold");
    };
  });
  registry.add<UnfoldGrad>([&c](const UnfoldGrad& op, const KernelRequest& q) {
    const Windows w{op.frames, convolved_frames(op.frames, op.stride), q.outputs[0].shape[1],
                    static_cast<int>(op.stride)};
    return [&c, w, rows = q.outputs[0].shape[0], dtype = q.outputs[0].dtype](const KernelArguments& a) {
      if (rows * w.channels == 0) return;
      with_type(dtype, [&]<typename T>() {
        const auto run = [&]<int N>() {
          const std::int64_t threads = rows * (w.channels / N);
          fold_kernel<T, N><<<grid_of(threads, kBlock), kBlock, 0, c.stream>>>(
              reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<T*>(a.outputs[0]), w, threads);
        };
        constexpr int kWide = 16 / sizeof(T);
        w.channels % kWide == 0 ? run.template operator()<kWide>() : run.template operator()<1>();
      });
      check_launch("unfold_grad");
    };
  });
}

// y may be `text` itself.
template <typename T, int N>
__global__ void replace_kernel(const T* text, const T* rows, const std::int32_t* source, T* y, std::int64_t row_count,
                               std::int64_t packs, std::int64_t width) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= packs) return;
  const std::int64_t token = i / (width / N), column = (i - token * (width / N)) * N;
  const std::int64_t from = source[token];
  if (from >= 0 && from < row_count) {
    store_pack(y + token * width + column, load_pack<N>(rows + from * width + column));
  } else if (y != text) {
    store_pack(y + token * width + column, load_pack<N>(text + token * width + column));
  }
}

// dtext may be `dy` itself; drows is zero before.
template <typename T, int N>
__global__ void replace_grad_kernel(const T* dy, const std::int32_t* source, T* dtext, T* drows, std::int64_t row_count,
                                    std::int64_t packs, std::int64_t width) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= packs) return;
  const std::int64_t token = i / (width / N), column = (i - token * (width / N)) * N;
  const std::int64_t to = source[token];
  auto pack = load_pack<N>(dy + token * width + column);
  if (to >= 0 && to < row_count) {
    store_pack(drows + to * width + column, pack);
#pragma unroll
    for (int j = 0; j < N; ++j) pack.v[j] = narrow<T>(0.0f);
  }
  store_pack(dtext + token * width + column, pack);
}

void register_rows(KernelRegistry& registry, Context& c) {
  registry.add<Reshape>([&c](const Reshape&, const KernelRequest& q) {
    return [&c, bytes = q.outputs[0].bytes()](const KernelArguments& a) {
      if (a.inputs[0] == a.outputs[0]) return;
      check_cuda(cudaMemcpyAsync(a.outputs[0], a.inputs[0], bytes, cudaMemcpyDeviceToDevice, c.stream), "reshape");
    };
  });
  registry.add<ReplaceRows>([&c](const ReplaceRows&, const KernelRequest& q) {
    return [&c, tokens = q.outputs[0].shape[0], width = q.outputs[0].shape[1], rows = q.inputs[1]->shape[0],
            dtype = q.outputs[0].dtype](const KernelArguments& a) {
      if (tokens * width == 0) return;
      with_type(dtype, [&]<typename T>() {
        const auto run = [&]<int N>() {
          const std::int64_t packs = tokens * (width / N);
          replace_kernel<T, N><<<grid_of(packs, kBlock), kBlock, 0, c.stream>>>(
              reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const T*>(a.inputs[1]),
              reinterpret_cast<const std::int32_t*>(a.inputs[2]), reinterpret_cast<T*>(a.outputs[0]), rows, packs,
              width);
        };
        constexpr int kWide = 16 / sizeof(T);
        width % kWide == 0 ? run.template operator()<kWide>() : run.template operator()<1>();
      });
      check_launch("replace_rows");
    };
  });
  registry.add<ReplaceRowsGrad>([&c](const ReplaceRowsGrad& op, const KernelRequest& q) {
    return [&c, tokens = q.outputs[0].shape[0], width = q.outputs[0].shape[1], rows = op.rows,
            bytes = q.outputs[1].bytes(), dtype = q.outputs[0].dtype](const KernelArguments& a) {
      check_cuda(cudaMemsetAsync(a.outputs[1], 0, bytes, c.stream), "replace_rows_grad");
      if (tokens * width == 0) return;
      with_type(dtype, [&]<typename T>() {
        const auto run = [&]<int N>() {
          const std::int64_t packs = tokens * (width / N);
          replace_grad_kernel<T, N><<<grid_of(packs, kBlock), kBlock, 0, c.stream>>>(
              reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const std::int32_t*>(a.inputs[1]),
              reinterpret_cast<T*>(a.outputs[0]), reinterpret_cast<T*>(a.outputs[1]), rows, packs, width);
        };
        constexpr int kWide = 16 / sizeof(T);
        width % kWide == 0 ? run.template operator()<kWide>() : run.template operator()<1>();
      });
      check_launch("replace_rows_grad");
    };
  });
}

// The runs of a bias, small enough to be an argument of a kernel.
struct BiasParts {
  static constexpr int kMost = 8;
  explicit BiasParts(const std::vector<BiasPart>& parts) : count(static_cast<int>(parts.size())) {
    check(count <= kMost, "a fused bias of more parts than the kernel takes");
    for (int p = 0; p < count; ++p) part[p] = {parts[p].from, parts[p].to, parts[p].count};
  }
  struct Run {
    std::int64_t from, to, count;
  };
  int count;
  Run part[kMost] = {};
};

template <typename T>
__global__ void expand_kernel(const T* bias, T* fused, BiasParts parts, std::int64_t width) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= width) return;
  T value = narrow<T>(0.0f);
  for (int p = 0; p < parts.count; ++p) {
    const auto [from, to, count] = parts.part[p];
    if (i >= to && i < to + count) value = bias[from + i - to];
  }
  fused[i] = value;
}

__global__ void expand_grad_kernel(const float* fused, float* bias, BiasParts parts, bool accumulate, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= n) return;
  float sum = accumulate ? bias[i] : 0.0f;
  for (int p = 0; p < parts.count; ++p) {
    const auto [from, to, count] = parts.part[p];
    if (i >= from && i < from + count) sum += fused[to + i - from];
  }
  bias[i] = sum;
}

void register_bias(KernelRegistry& registry, Context& c) {
  registry.add<ExpandBias>([&c](const ExpandBias& op, const KernelRequest& q) {
    return [&c, parts = BiasParts(op.parts), width = op.width,
            dtype = q.outputs[0].dtype](const KernelArguments& a) {
      if (width == 0) return;
      with_type(dtype, [&]<typename T>() {
        expand_kernel<<<grid_of(width, kBlock), kBlock, 0, c.stream>>>(
            reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<T*>(a.outputs[0]), parts, width);
      });
      check_launch("expand_bias");
    };
  });
  registry.add<ExpandBiasGrad>([&c](const ExpandBiasGrad& op, const KernelRequest& q) {
    check(q.inputs[0]->dtype == DType::kF32, "expand_bias_grad sums in f32");
    return [&c, parts = BiasParts(op.parts), n = op.width, accumulate = q.has(1)](const KernelArguments& a) {
      if (n == 0) return;
      expand_grad_kernel<<<grid_of(n, kBlock), kBlock, 0, c.stream>>>(reinterpret_cast<const float*>(a.inputs[0]),
                                                                     reinterpret_cast<float*>(a.outputs[0]), parts,
                                                                     accumulate, n);
      check_launch("expand_bias_grad");
    };
  });
}

}  // namespace

void register_frames(KernelRegistry& registry, Context& c) {
  register_convolution(registry, c);
  register_rows(registry, c);
  register_bias(registry, c);
}

}  // namespace convoy::cuda
