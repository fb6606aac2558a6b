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
void register_attention(Registry& registry) {
  struct P {
    AttentionShape s;
    TensorSpec x;
  };
  const auto probs = [](const P& p, const std::byte* qkv, const std::int32_t* st0, const std::int64_t* keys,
                        std::int64_t t, std::int64_t h, std::vector<double>& pr, std::vector<double>& keep,
                        double& lse) {
    const std::int64_t W = p.x.shape[1], D = p.s.head_dim, T = p.x.shape[0];
    const std::int64_t kv = h / (p.s.heads / p.s.kv_heads);
    pr.assign(T, 0);
    keep.assign(T, 1);
    double mx = -1e300;
    std::vector<bool> vis(T);
    for (std::int64_t j = 0; j < T; ++j) {
      vis[j] = st0[j] == st0[t] && (!p.s.causal || j <= t) && (p.s.window == 0 || j > t - p.s.window);
      if (!vis[j]) continue;
      double s = 0;
      for (std::int64_t d = 0; d < D; ++d)
        s += ld(p.x.dtype, qkv, t * W + h * D + d) * ld(p.x.dtype, qkv, j * W + (p.s.heads + kv) * D + d);
      pr[j] = s * p.s.scale;
      mx = std::max(mx, pr[j]);
    }
    double z = 0;
    for (std::int64_t j = 0; j < T; ++j) {
      pr[j] = vis[j] ? std::exp(pr[j] - mx) : 0;
      z += pr[j];
    }
    for (double& v : pr) v /= z;
    lse = mx + std::log(z);
    if (p.s.dropout > 0)
      for (std::int64_t j = 0; j < T; ++j)
        if (vis[j]) {
          const auto o = (std::uint32_t)(j - st0[t]);
          const auto k = (std::uint64_t)keys[t];
          const auto c = philox({o / 4, p.s.use * 65536 + (std::uint32_t)h, (std::uint32_t)k, (std::uint32_t)(k >> 32)},
                                philox_key(p.s.seed));
          keep[j] = to_unit(c[o % 4]) >= p.s.dropout ? 1 / (1 - (double)p.s.dropout) : 0;
        }
  };
  registry.add<Attention>([probs](const Attention& op, const Request& q) {
    return [probs, p = P{op.shape, *q.inputs[0]}](const KernelArguments& a) {
      const std::int64_t W = p.x.shape[1], D = p.s.head_dim, T = p.x.shape[0];
      std::vector<double> pr, keep;
      for (std::int64_t h = 0; h < p.s.heads; ++h)
        for (std::int64_t t = 0; t < T; ++t) {
          double lse;
          probs(p, a.inputs[0], reinterpret_cast<const std::int32_t*>(a.inputs[1]),
                a.inputs.size() > 2 ? reinterpret_cast<const std::int64_t*>(a.inputs[2]) : nullptr, t, h, pr, keep,
                lse);
          st(accumulation_dtype(p.x.dtype), a.outputs[1], h * T + t, lse);
          const std::int64_t kv = h / (p.s.heads / p.s.kv_heads);
          for (std::int64_t d = 0; d < D; ++d) {
            double s = 0;
            for (std::int64_t j = 0; j < T; ++j)
              s += pr[j] * keep[j] * ld(p.x.dtype, a.inputs[0], j * W + (p.s.heads + p.s.kv_heads + kv) * D + d);
            st(p.x.dtype, a.outputs[0], t * p.s.heads * D + h * D + d, s);
          }
        }
    };
  });
  registry.add<AttentionGrad>([probs](const AttentionGrad& op, const Request& q) {
    return [probs, p = P{op.shape, *q.inputs[1]}](const KernelArguments& a) {
      const std::int64_t W = p.x.shape[1], D = p.s.head_dim, T = p.x.shape[0], H = p.s.heads;
      std::vector<double> g(T * W), pr, keep;
      const std::byte* qkv = a.inputs[1];
      for (std::int64_t h = 0; h < H; ++h)
        for (std::int64_t t = 0; t < T; ++t) {
          double lse;
          probs(p, qkv, reinterpret_cast<const std::int32_t*>(a.inputs[4]),
                a.inputs.size() > 5 ? reinterpret_cast<const std::int64_t*>(a.inputs[5]) : nullptr, t, h, pr, keep,
                lse);
          const std::int64_t kv = h / (H / p.s.kv_heads);
          double delta = 0;
          for (std::int64_t d = 0; d < D; ++d)
            delta +=
                ld(p.x.dtype, a.inputs[0], t * H * D + h * D + d) * ld(p.x.dtype, a.inputs[2], t * H * D + h * D + d);
          for (std::int64_t j = 0; j < T; ++j) {
            if (pr[j] == 0) continue;
            double dp = 0;
            for (std::int64_t d = 0; d < D; ++d) {
              const double o = ld(p.x.dtype, a.inputs[0], t * H * D + h * D + d);
              dp += o * ld(p.x.dtype, qkv, j * W + (H + p.s.kv_heads + kv) * D + d);
              g[j * W + (H + p.s.kv_heads + kv) * D + d] += pr[j] * keep[j] * o;
            }
            const double ds = pr[j] * (dp * keep[j] - delta) * p.s.scale;
            for (std::int64_t d = 0; d < D; ++d) {
              g[t * W + h * D + d] += ds * ld(p.x.dtype, qkv, j * W + (H + kv) * D + d);
              g[j * W + (H + kv) * D + d] += ds * ld(p.x.dtype, qkv, t * W + h * D + d);
            }
          }
        }
      for (std::size_t i = 0; i < g.size(); ++i) st(p.x.dtype, a.outputs[0], i, g[i]);
    };
  });
}
}  // namespace convoy::cpu
