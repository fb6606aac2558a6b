#include <cmath>
#include <cstring>
#include <vector>
#include "base/random.h"
#include "cpu/registry.h"
#include "graph/ops/attention.h"
#include "graph/ops/linear.h"
#include "graph/ops/linear_cross_entropy.h"
namespace convoy::cpu {
namespace {
double ld(DType t, const std::byte* p, std::int64_t i) {
  switch (t) {
    case DType::kF32:
      return reinterpret_cast<const float*>(p)[i];
    case DType::kF64:
      return reinterpret_cast<const double*>(p)[i];
    case DType::kBF16:
      return to_float(reinterpret_cast<const BF16*>(p)[i]);
    default:
      return to_float(reinterpret_cast<const F16*>(p)[i]);
  }
}
void st(DType t, std::byte* p, std::int64_t i, double v) {
  switch (t) {
    case DType::kF32:
      reinterpret_cast<float*>(p)[i] = (float)v;
      break;
    case DType::kF64:
      reinterpret_cast<double*>(p)[i] = v;
      break;
    case DType::kBF16:
      reinterpret_cast<BF16*>(p)[i] = to_bf16((float)v);
      break;
    default:
      reinterpret_cast<F16*>(p)[i] = to_f16((float)v);
  }
}
}  // namespace
void register_head(Registry& registry) {
  const auto ce = [](const CrossEntropyShape& sh, const TensorSpec& x, const TensorSpec& w, const KernelArguments& a,
                     double scale, bool grad, bool acc) {
    const std::int64_t d = x.shape[1], V = w.shape[0];
    const auto* t = reinterpret_cast<const std::int32_t*>(a.inputs[2]);
    const DType wide = accumulation_dtype(x.dtype);
    double loss = 0, count = 0, correct = 0;
    std::vector<double> dw(grad ? V * d : 0);
    for (std::int64_t r = 0; r < x.shape[0]; ++r) {
      if (grad)
        for (std::int64_t k = 0; k < d; ++k) st(x.dtype, a.outputs[1], r * d + k, 0);
      if (t[r] < 0) continue;
      std::vector<double> l(V);
      double mx = -1e300;
      std::int64_t arg = 0;
      for (std::int64_t v = 0; v < V; ++v) {
        for (std::int64_t k = 0; k < d; ++k)
          l[v] += ld(x.dtype, a.inputs[0], r * d + k) * ld(x.dtype, a.inputs[1], v * d + k);
        if (l[v] > mx) {
          mx = l[v];
          arg = v;
        }
      }
      double z = 0, mean = 0;
      for (double v : l) {
        z += std::exp(v - mx);
        mean += v;
      }
      const double lse = mx + std::log(z);
      mean /= V;
      loss += (1 - sh.label_smoothing) * (lse - l[t[r]]) + sh.label_smoothing * (lse - mean) + sh.z_loss * lse * lse;
      ++count;
      correct += arg == t[r];
      if (!grad) continue;
      std::vector<double> dx(d);
      for (std::int64_t v = 0; v < V; ++v) {
        double g = std::exp(l[v] - lse) * (1 + 2 * sh.z_loss * lse) - (v == t[r] ? 1 - sh.label_smoothing : 0) -
                   sh.label_smoothing / V;
        g *= scale;
        for (std::int64_t k = 0; k < d; ++k) {
          dx[k] += g * ld(x.dtype, a.inputs[1], v * d + k);
          dw[v * d + k] += g * ld(x.dtype, a.inputs[0], r * d + k);
        }
      }
      for (std::int64_t k = 0; k < d; ++k) st(x.dtype, a.outputs[1], r * d + k, dx[k]);
    }
    if (grad)
      for (std::int64_t i = 0; i < V * d; ++i) st(wide, a.outputs[2], i, dw[i] + (acc ? ld(wide, a.inputs[4], i) : 0));
    st(wide, a.outputs[0], 0, loss);
    st(wide, a.outputs[0], 1, count);
    st(wide, a.outputs[0], 2, correct);
    st(wide, a.outputs[0], 3, 0);
  };
  registry.add<LinearCrossEntropy>([ce](const LinearCrossEntropy& op, const Request& q) {
    return [ce, op, x = *q.inputs[0], w = *q.inputs[1]](const KernelArguments& a) {
      ce(op.shape, x, w, a, 0, false, false);
    };
  });
  registry.add<LinearCrossEntropyGrad>([ce](const LinearCrossEntropyGrad& op, const Request& q) {
    return [ce, op, x = *q.inputs[0], w = *q.inputs[1], acc = q.has(4)](const KernelArguments& a) {
      ce(op.shape, x, w, a, ld(accumulation_dtype(x.dtype), a.inputs[3], 0), true, acc);
    };
  });
}
}
