// Gradients in fewer bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/registry.h"
#include "graph/ops/compress.h"

namespace convoy::cpu {
namespace {

constexpr std::int64_t kRun = 16384;  // a multiple of 64: no two tasks share a word of signs

std::int64_t runs_of(std::int64_t n) {
  return (n + kRun - 1) / kRun;
}

template <typename From, typename To, typename F>
void convert(const KernelArguments& a, std::int64_t n, const F& function) {
  const auto* from = reinterpret_cast<const From*>(a.inputs[0]);
  auto* to = reinterpret_cast<To*>(a.outputs[0]);
#pragma omp parallel for schedule(static)
  for (std::int64_t run = 0; run < runs_of(n); ++run) {
    const std::int64_t end = std::min(n, (run + 1) * kRun);
    for (std::int64_t i = run * kRun; i < end; ++i) to[i] = function(from[i]);
  }
}

void register_convert(Registry& registry) {
  registry.add<Convert>([](const Convert& op, const Request& q) {
    const DType from = q.inputs[0]->dtype;
    return [from, to = op.to, n = q.outputs[0].numel()](const KernelArguments& a) {
      if (from == DType::kF32 && to == DType::kBF16) return convert<float, BF16>(a, n, to_bf16);
      if (from == DType::kF32 && to == DType::kF16) return convert<float, F16>(a, n, to_f16);
      if (from == DType::kBF16 && to == DType::kF32)
        return convert<BF16, float>(a, n, [](BF16 x) { return to_float(x); });
      if (from == DType::kF16 && to == DType::kF32) return convert<F16, float>(a, n, [](F16 x) { return to_float(x); });
      throw internal_error("a conversion that has no kernel");
    };
  });
}

// Where the signs begin, after the scales.
std::int64_t first_word(std::int64_t n) {
  return sign_bytes(n) - (n + 63) / 64 * 8;
}

// Compresses elements [begin, end), one block; returns its scale.
float compress_block(const float* gradient, float* error, std::uint64_t* words, std::int64_t begin, std::int64_t end) {
  double total = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    error[i] += gradient[i];
    total += std::fabs(static_cast<double>(error[i]));
  }
  if (!std::isfinite(total)) {  // the step will be skipped on all ranks; what was lost before must not be spoilt
    std::fill(error + begin, error + end, 0.0F);
    return std::numeric_limits<float>::quiet_NaN();
  }
  const auto scale = static_cast<float>(total / static_cast<double>(end - begin));
  for (std::int64_t first = begin; first < end; first += 64) {
    std::uint64_t word = 0;
    for (std::int64_t i = first; i < std::min(end, first + 64); ++i) {
      const bool positive = error[i] >= 0;
      word |= std::uint64_t{positive} << (i - first);
      error[i] -= positive ? scale : -scale;
    }
    words[first / 64] = word;
  }
  return scale;
}

void register_signs(Registry& registry) {
  registry.add<SignCompress>([](const SignCompress&, const Request& q) {
    return [n = q.inputs[0]->numel()](const KernelArguments& a) {
      const auto* gradient = reinterpret_cast<const float*>(a.inputs[0]);
      auto* error = reinterpret_cast<float*>(a.outputs[1]);
      auto* scales = reinterpret_cast<float*>(a.outputs[0]);
      auto* words = reinterpret_cast<std::uint64_t*>(a.outputs[0] + first_word(n));
      const std::int64_t blocks = (n + kSignBlock - 1) / kSignBlock;
#pragma omp parallel for schedule(static)
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t begin = block * kSignBlock;
        scales[block] = compress_block(gradient, error, words, begin, std::min(n, begin + kSignBlock));
      }
    };
  });
  registry.add<SignSum>([](const SignSum& op, const Request& q) {
    return [n = q.outputs[0].numel(), ranks = op.ranks](const KernelArguments& a) {
      auto* sum = reinterpret_cast<float*>(a.outputs[0]);
      const std::int64_t bytes = sign_bytes(n);
      const std::int64_t blocks = (n + kSignBlock - 1) / kSignBlock;
#pragma omp parallel for schedule(static)
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t begin = block * kSignBlock;
        const std::int64_t end = std::min(n, begin + kSignBlock);
        std::fill(sum + begin, sum + end, 0.0F);
        for (int r = 0; r < ranks; ++r) {
          const std::byte* part = a.inputs[0] + r * bytes;
          const float scale = reinterpret_cast<const float*>(part)[block];
          const auto* words = reinterpret_cast<const std::uint64_t*>(part + first_word(n));
          for (std::int64_t i = begin; i < end; ++i) sum[i] += (words[i / 64] >> (i % 64) & 1) != 0 ? scale : -scale;
        }
      }
    };
  });
}

}  // namespace

void register_compress(Registry& registry) {
  register_convert(registry);
  register_signs(registry);
}

}  // namespace convoy::cpu
