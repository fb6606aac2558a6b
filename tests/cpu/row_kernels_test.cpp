// Every instruction set's row kernels against plain float64 arithmetic, for every dtype and odd sizes.
#include "cpu/row_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "base/random.h"
#include "cpu/isa.h"
#include "graph/ops/update.h"
#include "support/graph_runner.h"

namespace convoy::cpu {
namespace {

using convoy::testing::from_bytes;
using convoy::testing::random_values;
using convoy::testing::to_bytes;
using Values = std::vector<double>;

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-12;
    case DType::kF32:
      return 2e-6;
    case DType::kF16:
      return 2e-3;
    default:
      return 1.6e-2;
  }
}

// Rounded to the dtype, as the kernels see them.
Values rounded(DType dtype, const Values& values) {
  return from_bytes(dtype, to_bytes(dtype, values));
}

void expect_near(DType dtype, const Values& got, const Values& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance(dtype) * (1 + std::abs(expected[i])))
        << what << " " << name_of(dtype) << " [" << i << "] of " << got.size();
  }
}

class RowKernelTest : public ::testing::TestWithParam<Isa> {
 protected:
  RowKernelTest() { set_isa_limit(GetParam()); }
  ~RowKernelTest() override { set_isa_limit(Isa::kAvx512); }

  void for_all(const std::function<void(DType, std::int64_t, const RowKernels&)>& body) {
    for (const DType dtype : kDTypes) {
      for (const std::int64_t n : {1, 3, 16, 31, 64, 129}) body(dtype, n, row_kernels(dtype));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Isa, RowKernelTest, ::testing::Values(Isa::kBase, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(RowKernelTest, ConversionsKeepEveryBitPattern) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<std::uint16_t> all(65536), zero(65536, 0), sum(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    row_kernels(dtype).add(all.data(), zero.data(), sum.data(), 65536);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float value = dtype == DType::kF16 ? to_float(F16{all[i]}) : to_float(BF16{all[i]});
      const float back = dtype == DType::kF16 ? to_float(F16{sum[i]}) : to_float(BF16{sum[i]});
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(back)) << i;
      } else {
        ASSERT_EQ(back, value) << name_of(dtype) << " " << i;
      }
    }
  }
}

TEST_P(RowKernelTest, RmsNormAndItsGradient) {
  for_all([](DType dtype, std::int64_t n, const RowKernels& k) {
    const DType wide = accumulation_dtype(dtype);
    const Values x = rounded(dtype, random_values(n, 1)), w = rounded(dtype, random_values(n, 2)),
                 dy = rounded(dtype, random_values(n, 3));
    const Values plus = rounded(dtype, random_values(n, 4));
    double squares = 0, product = 0;
    for (std::size_t i = 0; i < x.size(); ++i) squares += x[i] * x[i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
    for (std::size_t i = 0; i < x.size(); ++i) product += dy[i] * w[i] * x[i];
    Values y, dx, dw;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y.push_back(w[i] * x[i] * rstd);
      dx.push_back(plus[i] + rstd * (w[i] * dy[i] - x[i] * product * rstd * rstd / static_cast<double>(n)));
      dw.push_back(1 + dy[i] * x[i] * rstd);
    }
    auto xb = to_bytes(dtype, x), wb = to_bytes(dtype, w), dyb = to_bytes(dtype, dy), pb = to_bytes(dtype, plus);
    std::vector<std::byte> yb(xb.size()), dxb(xb.size()), rb(size_of(wide));
    auto dwb = to_bytes(wide, Values(x.size(), 1.0));
    k.rmsnorm(xb.data(), nullptr, nullptr, wb.data(), yb.data(), 1e-5, rb.data(), n);
    expect_near(dtype, from_bytes(dtype, yb), y, "rmsnorm");
    EXPECT_NEAR(from_bytes(wide, rb)[0], rstd, 1e-5 * rstd);
    k.rmsnorm_grad(dyb.data(), xb.data(), wb.data(), rb.data(), pb.data(), dxb.data(), dwb.data(), n);
    expect_near(dtype, from_bytes(dtype, dxb), dx, "rmsnorm_grad");
    expect_near(wide, from_bytes(wide, dwb), dw, "rmsnorm weight");
    // With a residual: the sum is stored, and normalised as stored.
    std::vector<std::byte> sum(xb.size());
    k.rmsnorm(xb.data(), pb.data(), sum.data(), wb.data(), yb.data(), 1e-5, rb.data(), n);
    Values r(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) r[i] = x[i] + plus[i];
    expect_near(dtype, from_bytes(dtype, sum), r, "residual");
  });
}

TEST_P(RowKernelTest, LayerNormAndItsGradient) {
  for_all([](DType dtype, std::int64_t n, const RowKernels& k) {
    const DType wide = accumulation_dtype(dtype);
    const Values x = rounded(dtype, random_values(n, 1)), w = rounded(dtype, random_values(n, 2)),
                 b = rounded(dtype, random_values(n, 3));
    const Values dy = rounded(dtype, random_values(n, 4));
    const auto count = static_cast<double>(n);
    double mean = 0, variance = 0, g_mean = 0, g_product = 0;
    for (double v : x) mean += v / count;
    for (double v : x) variance += (v - mean) * (v - mean) / count;
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    for (std::size_t i = 0; i < x.size(); ++i) {
      g_mean += dy[i] * w[i] / count;
      g_product += dy[i] * w[i] * (x[i] - mean) * rstd / count;
    }
    Values y, dx;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double normed = (x[i] - mean) * rstd;
      y.push_back(normed * w[i] + b[i]);
      dx.push_back(rstd * (dy[i] * w[i] - g_mean - normed * g_product));
    }
    auto xb = to_bytes(dtype, x), wb = to_bytes(dtype, w), bb = to_bytes(dtype, b), dyb = to_bytes(dtype, dy);
    std::vector<std::byte> yb(xb.size()), dxb(xb.size()), mb(size_of(wide)), rb(size_of(wide));
    std::vector<std::byte> dwb(static_cast<std::size_t>(n) * size_of(wide)), dbb(dwb.size());
    k.layernorm(xb.data(), nullptr, nullptr, wb.data(), bb.data(), yb.data(), 1e-5, mb.data(), rb.data(), n);
    expect_near(dtype, from_bytes(dtype, yb), y, "layernorm");
    k.layernorm_grad(dyb.data(), xb.data(), wb.data(), mb.data(), rb.data(), nullptr, dxb.data(), dwb.data(),
                     dbb.data(), n);
    if (n > 1)
      expect_near(dtype, from_bytes(dtype, dxb), dx, "layernorm_grad");  // one element: 0/√eps amplifies rounding
    expect_near(wide, from_bytes(wide, dbb), dy, "layernorm bias");
  });
}

TEST_P(RowKernelTest, Activations) {
  for_all([](DType dtype, std::int64_t n, const RowKernels& k) {
    Values x = random_values(2 * n, 1);
    for (double& v : x) v *= 9;
    x = rounded(dtype, x);
    const Values dy = rounded(dtype, random_values(n, 2));
    Values y, dgate, dup, gelu_erf, gelu_tanh;
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      const double g = x[i], u = x[i + static_cast<std::size_t>(n)], s = 1 / (1 + std::exp(-g));
      y.push_back(g * s * u);
      dgate.push_back(dy[i] * u * s * (1 + g * (1 - s)));
      dup.push_back(dy[i] * g * s);
      gelu_erf.push_back(dy[i] *
                         (0.5 * (1 + std::erf(g / std::sqrt(2.0))) + g * std::exp(-g * g / 2) / std::sqrt(2 * M_PI)));
      const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (g + 0.044715 * g * g * g));
      gelu_tanh.push_back(dy[i] * (0.5 * (1 + t) + 0.5 * g * (1 - t * t) * c * (1 + 3 * 0.044715 * g * g)));
    }
    Values d = dgate;
    d.insert(d.end(), dup.begin(), dup.end());
    auto xb = to_bytes(dtype, x), dyb = to_bytes(dtype, dy);
    std::vector<std::byte> yb(dyb.size()), db(xb.size());
    k.swiglu(xb.data(), yb.data(), n);
    expect_near(dtype, from_bytes(dtype, yb), y, "swiglu");
    k.swiglu_grad(dyb.data(), xb.data(), db.data(), n);
    expect_near(dtype, from_bytes(dtype, db), d, "swiglu_grad");
    k.gelu_grad(dyb.data(), xb.data(), yb.data(), n, false);
    expect_near(dtype, from_bytes(dtype, yb), gelu_erf, "gelu_grad erf");
    k.gelu_grad(dyb.data(), xb.data(), yb.data(), n, true);
    expect_near(dtype, from_bytes(dtype, yb), gelu_tanh, "gelu_grad tanh");
  });
}

TEST_P(RowKernelTest, DropoutFollowsTheCounter) {
  for_all([](DType dtype, std::int64_t n, const RowKernels& k) {
    const Values x = rounded(dtype, random_values(n, 1));
    auto xb = to_bytes(dtype, x);
    std::vector<std::byte> yb(xb.size());
    const std::int64_t key = -123456789012345;
    k.dropout(xb.data(), yb.data(), n, 0.3f, 99, 7, key);
    Values y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto bits = static_cast<std::uint64_t>(key);
      const auto c = philox({static_cast<std::uint32_t>(i / 4), 7, static_cast<std::uint32_t>(bits),
                             static_cast<std::uint32_t>(bits >> 32)},
                            philox_key(99));
      y.push_back(to_unit(c[i % 4]) >= 0.3f ? x[i] / (1 - static_cast<double>(0.3f)) : 0);
    }
    expect_near(dtype, from_bytes(dtype, yb), y, "dropout");
  });
}

TEST_P(RowKernelTest, SumOfSquaresFindsWhatIsNotFinite) {
  for_all([](DType dtype, std::int64_t n, const RowKernels& k) {
    Values x = rounded(dtype, random_values(n, 1));
    double expected = 0;
    for (double v : x) expected += v * v;
    auto xb = to_bytes(dtype, x);
    std::int64_t bad = 0;
    EXPECT_NEAR(k.sum_of_squares(xb.data(), n, &bad), expected, 1e-9 * (1 + expected));
    EXPECT_EQ(bad, 0);
    x.back() = std::numeric_limits<double>::infinity();
    if (n > 1) x.front() = std::numeric_limits<double>::quiet_NaN();
    xb = to_bytes(dtype, x);
    k.sum_of_squares(xb.data(), n, &bad);
    EXPECT_EQ(bad, n > 1 ? 2 : 1);
  });
}

// The closed form of one step from zero moments: p(1 - lr·wd) - lr·g/(|g| + eps).
TEST_P(RowKernelTest, AdamWTakesTheClosedFormStep) {
  for_all([](DType dtype, std::int64_t n, const RowKernels& k) {
    const DType wide = accumulation_dtype(dtype);
    const Values p = rounded(wide, random_values(n, 1)), g = rounded(wide, random_values(n, 2));
    auto master = to_bytes(wide, p), gradient = to_bytes(wide, g), weight = to_bytes(dtype, p);
    std::vector<std::byte> m(master.size()), v(master.size());
    OptimizerRun run{};
    run.learning_rate = 0.01;
    run.beta1 = 0.9;
    run.beta2 = 0.95;
    run.eps = 1e-8;
    run.bias_correction1 = 1 - 0.9;
    run.bias_correction2 = 1 - 0.95;
    run.weight_decay = 0.1;
    run.gradient_scale = 0.5;
    run.kind = static_cast<int>(OptimizerKind::kAdamW);
    const bool same = dtype == wide;
    k.optimizer(run, weight.data(), same ? nullptr : master.data(), gradient.data(), m.data(), v.data(), n);
    Values expected;
    for (std::size_t i = 0; i < p.size(); ++i)
      expected.push_back(p[i] * (1 - 0.01 * 0.1) - 0.01 * (0.5 * g[i]) / (std::abs(0.5 * g[i]) + 1e-8));
    if (!same) expect_near(wide, from_bytes(wide, master), expected, "master");
    expect_near(dtype, from_bytes(dtype, weight), expected, "weight");
  });
}

}  // namespace
}  // namespace convoy::cpu
