// The heads of classification and choice: few rows, few classes.
#include <cmath>
#include <cstring>

#include "cpu/registry.h"
#include "cpu/row_kernels.h"
#include "graph/ops/cross_entropy.h"
#include "graph/ops/select_rows.h"

namespace convoy::cpu {
namespace {

double load(const float* p) {
  return static_cast<double>(*p);
}
double load(const double* p) {
  return *p;
}
double load(const BF16* p) {
  return static_cast<double>(to_float(*p));
}
double load(const F16* p) {
  return static_cast<double>(to_float(*p));
}
void store(float* p, double v) {
  *p = static_cast<float>(v);
}
void store(double* p, double v) {
  *p = v;
}
void store(BF16* p, double v) {
  *p = to_bf16(static_cast<float>(v));
}
void store(F16* p, double v) {
  *p = to_f16(static_cast<float>(v));
}

// Calls body(pointer to the dtype's element type).
template <typename Body>
void with_type(DType dtype, std::byte* at, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(reinterpret_cast<float*>(at));
    case DType::kF64:
      return body(reinterpret_cast<double*>(at));
    case DType::kBF16:
      return body(reinterpret_cast<BF16*>(at));
    case DType::kF16:
      return body(reinterpret_cast<F16*>(at));
    default:
      throw internal_error("scores of a type that is not floating");
  }
}

// The largest of an item's scores, the first of equals, and the logarithm of the sum of the exponentials.
struct Peak {
  std::int64_t at = 0;
  double log_sum = 0;
};
template <typename T>
Peak peak_of(const T* scores, std::int64_t classes) {
  Peak peak;
  for (std::int64_t c = 1; c < classes; ++c) {
    if (load(scores + c) > load(scores + peak.at)) peak.at = c;
  }
  const double most = load(scores + peak.at);
  double sum = 0;
  for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(load(scores + c) - most);
  peak.log_sum = most + std::log(sum);
  return peak;
}

template <typename T>
void losses(const T* scores, const std::int32_t* labels, std::int64_t items, std::int64_t classes, double* statistics) {
  for (std::int64_t i = 0; i < items; ++i) {
    if (labels[i] < 0) continue;
    const T* of = scores + i * classes;
    const Peak peak = peak_of(of, classes);
    statistics[kLossSum] += peak.log_sum - load(of + labels[i]);
    statistics[kTargetCount] += 1;
    statistics[kCorrectCount] += peak.at == labels[i] ? 1 : 0;
  }
}

template <typename T>
void gradients(const T* scores, const std::int32_t* labels, double scale, T* to, std::int64_t items,
               std::int64_t classes) {
  for (std::int64_t i = 0; i < items; ++i) {
    const T* of = scores + i * classes;
    const double log_sum = labels[i] < 0 ? 0 : peak_of(of, classes).log_sum;
    for (std::int64_t c = 0; c < classes; ++c) {
      const double share = labels[i] < 0 ? 0 : std::exp(load(of + c) - log_sum) - (c == labels[i] ? 1 : 0);
      store(to + i * classes + c, scale * share);
    }
  }
}

void register_select_rows(Registry& registry) {
  registry.add<SelectRows>([](const SelectRows&, const Request& q) {
    const std::int64_t rows = q.outputs[0].shape[0];
    const std::size_t bytes = q.outputs[0].bytes() / static_cast<std::size_t>(rows);
    return [rows, bytes](const KernelArguments& a) {
      const auto* at = reinterpret_cast<const std::int32_t*>(a.inputs[1]);
      for (std::int64_t r = 0; r < rows; ++r)
        std::memcpy(a.outputs[0] + static_cast<std::size_t>(r) * bytes,
                    a.inputs[0] + static_cast<std::size_t>(at[r]) * bytes, bytes);
    };
  });
  registry.add<SelectRowsGrad>([](const SelectRowsGrad&, const Request& q) {
    const TensorSpec out = q.outputs[0];
    const RowKernels& k = row_kernels(out.dtype);
    const std::int64_t rows = q.inputs[0]->shape[0], width = out.shape[1];
    const auto row_bytes = width * static_cast<std::int64_t>(size_of(out.dtype));
    return [&k, rows, width, row_bytes, bytes = out.bytes(), sums = q.has(2)](const KernelArguments& a) {
      if (!sums) {
        std::memset(a.outputs[0], 0, bytes);
      } else if (a.inputs[2] != a.outputs[0]) {
        std::memcpy(a.outputs[0], a.inputs[2], bytes);
      }
      const auto* at = reinterpret_cast<const std::int32_t*>(a.inputs[1]);
      for (std::int64_t r = 0; r < rows; ++r) {
        std::byte* to = a.outputs[0] + at[r] * row_bytes;
        k.add(to, a.inputs[0] + r * row_bytes, to, width);
      }
    };
  });
}

}  // namespace

void register_classes(Registry& registry) {
  register_select_rows(registry);
  registry.add<CrossEntropy>([](const CrossEntropy& op, const Request& q) {
    const DType dtype = q.inputs[0]->dtype, wide = q.outputs[0].dtype;
    return [dtype, wide, items = q.inputs[1]->numel(), classes = op.classes](const KernelArguments& a) {
      double statistics[kLossStatistics] = {};
      with_type(dtype, a.inputs[0], [&](const auto* scores) {
        losses(scores, reinterpret_cast<const std::int32_t*>(a.inputs[1]), items, classes, statistics);
      });
      with_type(wide, a.outputs[0], [&](auto* to) {
        for (std::int64_t i = 0; i < kLossStatistics; ++i) store(to + i, statistics[i]);
      });
    };
  });
  registry.add<CrossEntropyGrad>([](const CrossEntropyGrad& op, const Request& q) {
    const DType dtype = q.inputs[0]->dtype, wide = q.inputs[2]->dtype;
    return [dtype, wide, items = q.inputs[1]->numel(), classes = op.classes](const KernelArguments& a) {
      double scale = 0;
      with_type(wide, a.inputs[2], [&](const auto* from) { scale = load(from); });
      with_type(dtype, a.inputs[0], [&](auto* scores) {
        gradients(scores, reinterpret_cast<const std::int32_t*>(a.inputs[1]), scale,
                  reinterpret_cast<decltype(scores)>(a.outputs[0]), items, classes);
      });
    };
  });
}

}  // namespace convoy::cpu
