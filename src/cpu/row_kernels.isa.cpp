#include "cpu/row_kernels.h"
#include "cpu/isa_math.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

using Int = std::int64_t;

template <typename T>
const T* in(const void* p) {
  return static_cast<const T*>(p);
}
template <typename T>
T* out(void* p) {
  return static_cast<T*>(p);
}

template <typename T>
void add(const void* a, const void* b, void* y, Int n) {
#pragma omp simd
  for (Int i = 0; i < n; ++i) store(out<T>(y) + i, load(in<T>(a)[i]) + load(in<T>(b)[i]));
}

template <typename T>
void scale(double factor, const void* x, void* y, Int n) {
  const auto f = static_cast<Wide<T>>(factor);
#pragma omp simd
  for (Int i = 0; i < n; ++i) store(out<T>(y) + i, f * load(in<T>(x)[i]));
}

template <typename T>
void swiglu(const void* gate_up, void* y, Int f) {
  const T* gate = in<T>(gate_up);
#pragma omp simd
  for (Int i = 0; i < f; ++i) {
    const auto g = load(gate[i]);
    store(out<T>(y) + i, g * sigmoid(g) * load(gate[f + i]));
  }
}

template <typename T>
void swiglu_grad(const void* dy, const void* gate_up, void* dgate_up, Int f) {
  using W = Wide<T>;
  const T* gate = in<T>(gate_up);
  T* d = out<T>(dgate_up);
#pragma omp simd
  for (Int i = 0; i < f; ++i) {
    const W g = load(gate[i]);
    const W u = load(gate[f + i]);
    const W dv = load(in<T>(dy)[i]);
    const W s = sigmoid(g);
    store(d + i, dv * u * s * (W(1) + g * (W(1) - s)));
    store(d + f + i, dv * g * s);
  }
}

// The derivative of ½x(1 + tanh(t)) = x·σ(2t), without the cancellation near zero, needs 2t.
template <typename W>
inline W gelu_tanh_argument(W x) {
  return W(1.5957691216057308) * (x + W(0.044715) * x * x * x);  // 2√(2/π)
}

template <typename T>
void gelu_grad(const void* dy, const void* x, void* dx, Int n, bool tanh_form) {
  using W = Wide<T>;
  if (tanh_form) {
#pragma omp simd
    for (Int i = 0; i < n; ++i) {
      const W v = load(in<T>(x)[i]);
      const W s = sigmoid(gelu_tanh_argument(v));
      const W slope = W(1.5957691216057308) * (W(1) + W(3 * 0.044715) * v * v);
      store(out<T>(dx) + i, load(in<T>(dy)[i]) * (s + v * s * (W(1) - s) * slope));
    }
    return;
  }
  for (Int i = 0; i < n; ++i) {
    const W v = load(in<T>(x)[i]);
    const W cdf = W(0.5) * (W(1) + error_function(v * W(0.70710678118654752)));
    const W density = W(0.3989422804014327) * fast_exp(W(-0.5) * v * v);
    store(out<T>(dx) + i, load(in<T>(dy)[i]) * (cdf + v * density));
  }
}

// r = x + residual, rounded to T as it is stored; returns where r lies.
template <typename T>
const T* residual_sum(const void* x, const void* residual, void* sum, Int n) {
  if (residual == nullptr) return in<T>(x);
  add<T>(x, residual, sum, n);
  return in<T>(sum);
}

template <typename T>
void rmsnorm(const void* x, const void* residual, void* sum, const void* w, void* y, double eps, void* rstd, Int n) {
  using W = Wide<T>;
  const T* r = residual_sum<T>(x, residual, sum, n);
  W squares = 0;
#pragma omp simd reduction(+ : squares)
  for (Int i = 0; i < n; ++i) squares += load(r[i]) * load(r[i]);
  const W inverse = W(1) / square_root(squares / static_cast<W>(n) + static_cast<W>(eps));
  *out<W>(rstd) = inverse;
#pragma omp simd
  for (Int i = 0; i < n; ++i) store(out<T>(y) + i, load(in<T>(w)[i]) * (load(r[i]) * inverse));
}

template <typename T>
void rmsnorm_grad(const void* dy, const void* r, const void* w, const void* rstd, const void* plus, void* dr, void* dw,
                  Int n) {
  using W = Wide<T>;
  const W inverse = *in<W>(rstd);
  W product = 0;
#pragma omp simd reduction(+ : product)
  for (Int i = 0; i < n; ++i) product += load(in<T>(dy)[i]) * load(in<T>(w)[i]) * load(in<T>(r)[i]);
  const W mean = product * inverse * inverse / static_cast<W>(n);
  W* sums = out<W>(dw);
#pragma omp simd
  for (Int i = 0; i < n; ++i) {
    const W d = load(in<T>(dy)[i]);
    const W v = load(in<T>(r)[i]);
    sums[i] += d * v * inverse;
    const W before = plus == nullptr ? W(0) : static_cast<W>(load(in<T>(plus)[i]));
    store(out<T>(dr) + i, before + inverse * (load(in<T>(w)[i]) * d - v * mean));
  }
}

template <typename T>
void layernorm(const void* x, const void* residual, void* sum, const void* w, const void* b, void* y, double eps,
               void* mean, void* rstd, Int n) {
  using W = Wide<T>;
  const T* r = residual_sum<T>(x, residual, sum, n);
  W total = 0;
#pragma omp simd reduction(+ : total)
  for (Int i = 0; i < n; ++i) total += load(r[i]);
  const W center = total / static_cast<W>(n);
  W squares = 0;
#pragma omp simd reduction(+ : squares)
  for (Int i = 0; i < n; ++i) squares += (load(r[i]) - center) * (load(r[i]) - center);
  const W inverse = W(1) / square_root(squares / static_cast<W>(n) + static_cast<W>(eps));
  *out<W>(mean) = center;
  *out<W>(rstd) = inverse;
#pragma omp simd
  for (Int i = 0; i < n; ++i)
    store(out<T>(y) + i, (load(r[i]) - center) * inverse * load(in<T>(w)[i]) + load(in<T>(b)[i]));
}

template <typename T>
void layernorm_grad(const void* dy, const void* r, const void* w, const void* mean, const void* rstd, const void* plus,
                    void* dr, void* dw, void* db, Int n) {
  using W = Wide<T>;
  const W inverse = *in<W>(rstd);
  const W center = *in<W>(mean);
  W total = 0;
  W product = 0;
#pragma omp simd reduction(+ : total, product)
  for (Int i = 0; i < n; ++i) {
    const W g = load(in<T>(dy)[i]) * load(in<T>(w)[i]);
    total += g;
    product += g * (load(in<T>(r)[i]) - center) * inverse;
  }
  total /= static_cast<W>(n);
  product /= static_cast<W>(n);
  W* weight_sums = out<W>(dw);
  W* bias_sums = out<W>(db);
#pragma omp simd
  for (Int i = 0; i < n; ++i) {
    const W d = load(in<T>(dy)[i]);
    const W normed = (load(in<T>(r)[i]) - center) * inverse;
    weight_sums[i] += d * normed;
    bias_sums[i] += d;
    const W before = plus == nullptr ? W(0) : static_cast<W>(load(in<T>(plus)[i]));
    store(out<T>(dr) + i, before + inverse * (d * load(in<T>(w)[i]) - total - normed * product));
  }
}

template <typename T>
void rotary(const void* x, void* y, const float* cosines, const float* sines, Int heads, Int head_dim, Int half,
            bool interleaved, bool inverse) {
  using W = Wide<T>;
  const W sign = inverse ? W(-1) : W(1);
  for (Int h = 0; h < heads; ++h) {
    const T* from = in<T>(x) + h * head_dim;
    T* to = out<T>(y) + h * head_dim;
    if (interleaved) {
#pragma omp simd
      for (Int i = 0; i < half; ++i) {
        const W a = load(from[2 * i]);
        const W b = load(from[2 * i + 1]);
        store(to + 2 * i, a * cosines[i] - sign * b * sines[i]);
        store(to + 2 * i + 1, b * cosines[i] + sign * a * sines[i]);
      }
    } else {
#pragma omp simd
      for (Int i = 0; i < half; ++i) {
        const W a = load(from[i]);
        const W b = load(from[half + i]);
        store(to + i, a * cosines[i] - sign * b * sines[i]);
        store(to + half + i, b * cosines[i] + sign * a * sines[i]);
      }
    }
  }
}

template <typename T>
void accumulate(const void* x, void* sum, Int n) {
  Wide<T>* sums = out<Wide<T>>(sum);
#pragma omp simd
  for (Int i = 0; i < n; ++i) sums[i] += load(in<T>(x)[i]);
}

// Philox4x32-10, as base/random.h, in this namespace so that it is compiled for this instruction set.
inline void philox_block(std::uint32_t c[4], std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    const auto c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0;
    const auto c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1;
    c[1] = static_cast<std::uint32_t>(p1);
    c[3] = static_cast<std::uint32_t>(p0);
    c[0] = c0;
    c[2] = c2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

template <typename T>
void dropout(const void* x, void* y, Int n, float p, std::uint64_t seed, std::uint32_t use, Int key) {
  using W = Wide<T>;
  const W keep_scale = W(1) / (W(1) - static_cast<W>(p));
  const auto low = static_cast<std::uint32_t>(static_cast<std::uint64_t>(key));
  const auto high = static_cast<std::uint32_t>(static_cast<std::uint64_t>(key) >> 32);
  for (Int start = 0; start < n; start += 4) {
    std::uint32_t c[4] = {static_cast<std::uint32_t>(start / 4), use, low, high};
    philox_block(c, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
    for (Int i = 0; i < 4 && start + i < n; ++i) {
      const bool keep = static_cast<float>(c[i] >> 8) * 0x1p-24f >= p;
      store(out<T>(y) + start + i, keep ? keep_scale * load(in<T>(x)[start + i]) : W(0));
    }
  }
}

template <typename T>
double sum_of_squares(const void* x, Int n, Int* not_finite) {
  double sum = 0;
  Int bad = 0;
#pragma omp simd reduction(+ : sum, bad)
  for (Int i = 0; i < n; ++i) {
    const auto v = static_cast<double>(load(in<T>(x)[i]));
    sum += v * v;
    bad += v - v == 0 ? 0 : 1;
  }
  *not_finite += bad;
  return sum;
}

// Adam and AdamW (Kingma and Ba, 2015; Loshchilov and Hutter, 2019), in the order of operations of torch.optim.AdamW.
template <typename T>
void adam(const OptimizerRun& run, T* weight, Wide<T>* master, const Wide<T>* gradient, Wide<T>* m, Wide<T>* v, Int n) {
  using W = Wide<T>;
  const bool decoupled = run.kind == 0;
  const auto b1 = static_cast<W>(run.beta1);
  const auto b2 = static_cast<W>(run.beta2);
  const auto decay = static_cast<W>(decoupled ? 1 - run.learning_rate * run.weight_decay : 1);
  const auto l2 = static_cast<W>(decoupled ? 0 : run.weight_decay);
  const auto step = static_cast<W>(run.learning_rate / run.bias_correction1);
  const auto root = static_cast<W>(1 / __builtin_sqrt(run.bias_correction2));
  const auto eps = static_cast<W>(run.eps);
  const auto gradient_scale = static_cast<W>(run.gradient_scale);
#pragma omp simd
  for (Int i = 0; i < n; ++i) {
    W p = master[i];
    const W g = gradient[i] * gradient_scale + l2 * p;
    const W first = b1 * m[i] + (W(1) - b1) * g;
    const W second = b2 * v[i] + (W(1) - b2) * g * g;
    m[i] = first;
    v[i] = second;
    p = p * decay - step * first / (square_root(second) * root + eps);
    master[i] = p;
    store(weight + i, p);
  }
}

// finetune-transformer-lm's Adam (Radford et al., 2018): eps beside the root that is not corrected, and a decay that
// the corrections scale with the step.
template <typename T>
void openai_adam(const OptimizerRun& run, T* weight, Wide<T>* master, const Wide<T>* gradient, Wide<T>* m, Wide<T>* v,
                 Int n) {
  using W = Wide<T>;
  const auto b1 = static_cast<W>(run.beta1);
  const auto b2 = static_cast<W>(run.beta2);
  const auto step = static_cast<W>(run.learning_rate * __builtin_sqrt(run.bias_correction2) / run.bias_correction1);
  const auto l2 = static_cast<W>(run.weight_decay);
  const auto eps = static_cast<W>(run.eps);
  const auto gradient_scale = static_cast<W>(run.gradient_scale);
#pragma omp simd
  for (Int i = 0; i < n; ++i) {
    W p = master[i];
    const W g = gradient[i] * gradient_scale;
    const W first = b1 * m[i] + (W(1) - b1) * g;
    const W second = b2 * v[i] + (W(1) - b2) * g * g;
    m[i] = first;
    v[i] = second;
    p -= step * (first / (square_root(second) + eps) + l2 * p);
    master[i] = p;
    store(weight + i, p);
  }
}

// torch.optim.SGD.
template <typename T>
void sgd(const OptimizerRun& run, T* weight, Wide<T>* master, const Wide<T>* gradient, Wide<T>* m, Int n) {
  using W = Wide<T>;
  const auto lr = static_cast<W>(run.learning_rate);
  const auto l2 = static_cast<W>(run.weight_decay);
  const auto mu = static_cast<W>(run.momentum);
  const auto damp = static_cast<W>(run.first_step ? 1 : 1 - run.dampening);
  const auto gradient_scale = static_cast<W>(run.gradient_scale);
  for (Int i = 0; i < n; ++i) {
    W p = master[i];
    W g = gradient[i] * gradient_scale + l2 * p;
    if (m != nullptr) {
      m[i] = mu * m[i] + damp * g;
      g = run.nesterov ? g + mu * m[i] : m[i];
    }
    p -= lr * g;
    master[i] = p;
    store(weight + i, p);
  }
}

// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023).
template <typename T>
void lion(const OptimizerRun& run, T* weight, Wide<T>* master, const Wide<T>* gradient, Wide<T>* m, Int n) {
  using W = Wide<T>;
  const auto lr = static_cast<W>(run.learning_rate);
  const auto decay = static_cast<W>(1 - run.learning_rate * run.weight_decay);
  const auto b1 = static_cast<W>(run.beta1);
  const auto b2 = static_cast<W>(run.beta2);
  const auto gradient_scale = static_cast<W>(run.gradient_scale);
#pragma omp simd
  for (Int i = 0; i < n; ++i) {
    const W g = gradient[i] * gradient_scale;
    const W u = b1 * m[i] + (W(1) - b1) * g;
    const W sign = u > 0 ? W(1) : (u < 0 ? W(-1) : W(0));
    const W p = master[i] * decay - lr * sign;
    m[i] = b2 * m[i] + (W(1) - b2) * g;
    master[i] = p;
    store(weight + i, p);
  }
}

// Adagrad (Duchi, Hazan and Singer, 2011), with L2 decay as torch.
template <typename T>
void adagrad(const OptimizerRun& run, T* weight, Wide<T>* master, const Wide<T>* gradient, Wide<T>* sum, Int n) {
  using W = Wide<T>;
  const auto lr = static_cast<W>(run.learning_rate);
  const auto l2 = static_cast<W>(run.weight_decay);
  const auto eps = static_cast<W>(run.eps);
  const auto gradient_scale = static_cast<W>(run.gradient_scale);
#pragma omp simd
  for (Int i = 0; i < n; ++i) {
    W p = master[i];
    const W g = gradient[i] * gradient_scale + l2 * p;
    sum[i] += g * g;
    p -= lr * g / (square_root(sum[i]) + eps);
    master[i] = p;
    store(weight + i, p);
  }
}

template <typename T>
void optimizer(const OptimizerRun& run, void* weight, void* master, const void* gradient, void* moment1, void* moment2,
               Int n) {
  using W = Wide<T>;
  T* w = out<T>(weight);
  W* p = master != nullptr ? out<W>(master) : out<W>(weight);
  const W* g = in<W>(gradient);
  switch (run.kind) {
    case 0:
    case 1:
      adam<T>(run, w, p, g, out<W>(moment1), out<W>(moment2), n);
      return;
    case 2:
      sgd<T>(run, w, p, g, out<W>(moment1), n);
      return;
    case 3:
      lion<T>(run, w, p, g, out<W>(moment1), n);
      return;
    case 5:
      openai_adam<T>(run, w, p, g, out<W>(moment1), out<W>(moment2), n);
      return;
    default:
      adagrad<T>(run, w, p, g, out<W>(moment1), n);
      return;
  }
}

template <typename T>
constexpr RowKernels table() {
  return {add<T>,       scale<T>,          swiglu<T>, swiglu_grad<T>, gelu_grad<T>, rmsnorm<T>,        rmsnorm_grad<T>,
          layernorm<T>, layernorm_grad<T>, rotary<T>, accumulate<T>,  dropout<T>,   sum_of_squares<T>, optimizer<T>};
}

}  // namespace

const RowKernels* row_kernel_tables() {
  static constexpr RowKernels kTables[] = {table<float>(), table<bf16>(), table<f16>(), table<double>()};
  return kTables;
}

}  // namespace convoy::cpu::CONVOY_ISA
