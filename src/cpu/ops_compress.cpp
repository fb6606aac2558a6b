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
      const auto same = [](auto x) { return x; };
      if (from == DType::kF32 && to == DType::kBF16) return convert<float, BF16>(a, n, to_bf16);
      if (from == DType::kF32 && to == DType::kF16) return convert<float, F16>(a, n, to_f16);
      if (from == DType::kBF16 && to == DType::kF32)
        return convert<BF16, float>(a, n, [](BF16 x) { return to_float(x); });
      if (from == DType::kF16 && to == DType::kF32) return convert<F16, float>(a, n, [](F16 x) { return to_float(x); });
      if (from == DType::kF32 && to == DType::kF32) return convert<float, float>(a, n, same);
      throw internal_error("a conversion that has no kernel");
    };
  });
}

void register_signs(Registry& registry) {
  registry.add<SignCompress>(
      [](const SignCompress&, const Request& q) {
        return [n = q.inputs[0]->numel()](const KernelArguments& a) {
          const auto* gradient = reinterpret_cast<const float*>(a.inputs[0]);
          auto* error = reinterpret_cast<float*>(a.outputs[1]);
          auto* words = reinterpret_cast<std::uint64_t*>(a.outputs[0] + sizeof(double));
          auto* sums = reinterpret_cast<double*>(a.workspace);
#pragma omp parallel for schedule(static)
          for (std::int64_t run = 0; run < runs_of(n); ++run) {
            double sum = 0;
            for (std::int64_t i = run * kRun; i < std::min(n, (run + 1) * kRun); ++i) {
              error[i] += gradient[i];
              sum += std::fabs(static_cast<double>(error[i]));
            }
            sums[run] = sum;
          }
          double total = 0;
          for (std::int64_t run = 0; run < runs_of(n); ++run) total += sums[run];
          double mean = n > 0 ? total / static_cast<double>(n) : 0;
          if (!std::isfinite(total)) {  // the step will be skipped on all ranks; what was lost before must not be spoilt
            mean = std::numeric_limits<double>::quiet_NaN();
            std::fill(error, error + n, 0.0F);
          }
          std::memcpy(a.outputs[0], &mean, sizeof(mean));
          const auto scale = static_cast<float>(mean);
#pragma omp parallel for schedule(static)
          for (std::int64_t run = 0; run < runs_of(n); ++run) {
            for (std::int64_t first = run * kRun; first < std::min(n, (run + 1) * kRun); first += 64) {
              std::uint64_t word = 0;
              for (std::int64_t i = first; i < std::min(n, first + 64); ++i) {
                const bool positive = error[i] >= 0;
                word |= std::uint64_t{positive} << (i - first);
                if (std::isfinite(mean)) error[i] -= positive ? scale : -scale;
              }
              words[first / 64] = word;
            }
          }
        };
      },
      [](const SignCompress&, const Request& q) {
        return static_cast<std::size_t>(runs_of(q.inputs[0]->numel())) * sizeof(double);
      });
  registry.add<SignSum>([](const SignSum& op, const Request& q) {
    const std::int64_t n = q.outputs[0].numel();
    return [n, ranks = op.ranks, bytes = sign_bytes(n)](const KernelArguments& a) {
      auto* sum = reinterpret_cast<float*>(a.outputs[0]);
#pragma omp parallel for schedule(static)
      for (std::int64_t run = 0; run < runs_of(n); ++run) {
        const std::int64_t begin = run * kRun;
        const std::int64_t end = std::min(n, begin + kRun);
        std::fill(sum + begin, sum + end, 0.0F);
        for (int r = 0; r < ranks; ++r) {
          const std::byte* part = a.inputs[0] + r * bytes;
          double mean = 0;
          std::memcpy(&mean, part, sizeof(mean));
          const auto scale = static_cast<float>(mean);
          const auto* words = reinterpret_cast<const std::uint64_t*>(part + sizeof(double));
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
