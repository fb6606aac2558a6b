// Convolution over time as a matrix product, reshaped frames, and rows that take the place of others.
#include <algorithm>
#include <cstring>

#include "cpu/registry.h"
#include "cpu/row_kernels.h"
#include "graph/ops/frames.h"

namespace convoy::cpu {
namespace {

constexpr std::int64_t kTaps = kConvolutionTaps;

// The frames of windows before and after a convolution.
struct Windows {
  std::int64_t frames, out, stride, channels;
  // The input frame of tap k of output frame t, in its window; outside [0, frames) for padding.
  std::int64_t source(std::int64_t t, std::int64_t k) const { return t * stride + k - 1; }
};

template <typename T>
void unfold(const Windows& w, const T* x, T* y, std::int64_t rows) {
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t window = r / w.out, t = r % w.out;
    T* to = y + r * kTaps * w.channels;
    for (std::int64_t k = 0; k < kTaps; ++k) {
      const std::int64_t s = w.source(t, k);
      if (s < 0 || s >= w.frames) {
        for (std::int64_t c = 0; c < w.channels; ++c) to[c * kTaps + k] = T{};
        continue;
      }
      const T* from = x + (window * w.frames + s) * w.channels;
      for (std::int64_t c = 0; c < w.channels; ++c) to[c * kTaps + k] = from[c];
    }
  }
}

// Elements as sums are taken in, and back.
float wide(float v) {
  return v;
}
double wide(double v) {
  return v;
}
float wide(BF16 v) {
  return to_float(v);
}
float wide(F16 v) {
  return to_float(v);
}
void narrow(float v, float& to) {
  to = v;
}
void narrow(double v, double& to) {
  to = v;
}
void narrow(float v, BF16& to) {
  to = to_bf16(v);
}
void narrow(float v, F16& to) {
  to = to_f16(v);
}

// Each input frame gathers what the at most three output frames that saw it give.
template <typename T>
void fold(const Windows& w, const T* dy, T* dx, std::int64_t rows) {
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t window = r / w.frames, s = r % w.frames;
    const T* from[kTaps] = {};
    for (std::int64_t k = 0; k < kTaps; ++k) {
      const std::int64_t at = s + 1 - k;  // t·stride
      if (at < 0 || at % w.stride != 0 || at / w.stride >= w.out) continue;
      from[k] = dy + (window * w.out + at / w.stride) * kTaps * w.channels + k;
    }
    T* to = dx + r * w.channels;
    for (std::int64_t c = 0; c < w.channels; ++c) {
      decltype(wide(T{})) sum = 0;
      for (std::int64_t k = 0; k < kTaps; ++k) {
        if (from[k] != nullptr) sum += wide(from[k][c * kTaps]);
      }
      narrow(sum, to[c]);
    }
  }
}

template <typename F>
void with_type(DType dtype, const F& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kF64:
      return body(double{});
    case DType::kBF16:
      return body(BF16{});
    case DType::kF16:
      return body(F16{});
    default:
      throw internal_error("a convolution of a type that is not floating");
  }
}

void register_convolution(Registry& registry) {
  registry.add<Unfold>([](const Unfold& op, const Request& q) {
    const Windows w{op.frames, convolved_frames(op.frames, op.stride), op.stride, q.inputs[0]->shape[1]};
    return [w, rows = q.outputs[0].shape[0], dtype = q.outputs[0].dtype](const KernelArguments& a) {
      with_type(dtype, [&]<typename T>(T) {
        unfold(w, reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<T*>(a.outputs[0]), rows);
      });
    };
  });
  registry.add<UnfoldGrad>([](const UnfoldGrad& op, const Request& q) {
    const Windows w{op.frames, convolved_frames(op.frames, op.stride), op.stride, q.outputs[0].shape[1]};
    return [w, rows = q.outputs[0].shape[0], dtype = q.outputs[0].dtype](const KernelArguments& a) {
      with_type(dtype, [&]<typename T>(T) {
        fold(w, reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<T*>(a.outputs[0]), rows);
      });
    };
  });
}

void copy_rows(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t row_bytes) {
  if (to == from) return;
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(to + r * row_bytes, from + r * row_bytes, static_cast<std::size_t>(row_bytes));
}

void register_rows(Registry& registry) {
  registry.add<Reshape>([](const Reshape&, const Request& q) {
    const auto bytes = static_cast<std::int64_t>(q.outputs[0].bytes());
    return [bytes](const KernelArguments& a) {
      constexpr std::int64_t kPiece = 1 << 18;
      if (a.inputs[0] == a.outputs[0]) return;
#pragma omp parallel for schedule(static)
      for (std::int64_t piece = 0; piece < pieces(bytes, kPiece); ++piece) {
        const std::int64_t at = piece * kPiece;
        std::memcpy(a.outputs[0] + at, a.inputs[0] + at, static_cast<std::size_t>(std::min(kPiece, bytes - at)));
      }
    };
  });
  registry.add<ReplaceRows>([](const ReplaceRows&, const Request& q) {
    const std::int64_t tokens = q.outputs[0].shape[0], rows = q.inputs[1]->shape[0];
    const std::int64_t row_bytes = q.outputs[0].shape[1] * static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    return [tokens, rows, row_bytes](const KernelArguments& a) {
      copy_rows(a.outputs[0], a.inputs[0], tokens, row_bytes);
      const auto* source = reinterpret_cast<const std::int32_t*>(a.inputs[2]);
#pragma omp parallel for schedule(static)
      for (std::int64_t t = 0; t < tokens; ++t) {
        if (source[t] < 0 || source[t] >= rows) continue;
        std::memcpy(a.outputs[0] + t * row_bytes, a.inputs[1] + source[t] * row_bytes,
                    static_cast<std::size_t>(row_bytes));
      }
    };
  });
  registry.add<ReplaceRowsGrad>([](const ReplaceRowsGrad& op, const Request& q) {
    const std::int64_t tokens = q.outputs[0].shape[0];
    const std::int64_t row_bytes = q.outputs[0].shape[1] * static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    return [tokens, rows = op.rows, row_bytes](const KernelArguments& a) {
      copy_rows(a.outputs[0], a.inputs[0], tokens, row_bytes);
      const auto* source = reinterpret_cast<const std::int32_t*>(a.inputs[1]);
      std::memset(a.outputs[1], 0, static_cast<std::size_t>(rows * row_bytes));
#pragma omp parallel for schedule(static)
      for (std::int64_t t = 0; t < tokens; ++t) {
        if (source[t] < 0 || source[t] >= rows) continue;
        std::byte* text = a.outputs[0] + t * row_bytes;
        std::memcpy(a.outputs[1] + source[t] * row_bytes, text, static_cast<std::size_t>(row_bytes));
        std::memset(text, 0, static_cast<std::size_t>(row_bytes));
      }
    };
  });
}

void register_bias(Registry& registry) {
  registry.add<ExpandBias>([](const ExpandBias& op, const Request& q) {
    return [parts = op.parts, bytes = q.outputs[0].bytes(),
            size = static_cast<std::int64_t>(size_of(q.outputs[0].dtype))](const KernelArguments& a) {
      std::memset(a.outputs[0], 0, bytes);
      for (const BiasPart& part : parts)
        std::memcpy(a.outputs[0] + part.to * size, a.inputs[0] + part.from * size,
                    static_cast<std::size_t>(part.count * size));
    };
  });
  registry.add<ExpandBiasGrad>([](const ExpandBiasGrad& op, const Request& q) {
    const DType dtype = q.outputs[0].dtype;
    return [parts = op.parts, &k = row_kernels(dtype), bytes = q.outputs[0].bytes(), accumulate = q.has(1),
            size = static_cast<std::int64_t>(size_of(dtype))](const KernelArguments& a) {
      if (!accumulate) std::memset(a.outputs[0], 0, bytes);
      for (const BiasPart& part : parts)
        k.accumulate(a.inputs[0] + part.to * size, a.outputs[0] + part.from * size, part.count);
    };
  });
}

}  // namespace

void register_frames(Registry& registry) {
  register_convolution(registry);
  register_rows(registry);
  register_bias(registry);
}

}  // namespace convoy::cpu
