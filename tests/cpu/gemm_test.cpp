#include "cpu/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "cpu/isa.h"
#include "kernel_testing.h"

namespace convoy::cpu {
namespace {

using testing::HasSubstr;

struct Case {
  GemmSpec spec;
  std::vector<double> a, b, bias, c;  // rounded to their types
};

Case make_case(GemmSpec s, std::uint64_t seed) {
  RandomStream random(seed, 0);
  const std::int64_t a_rows = s.transpose_a ? s.k : s.m, a_cols = s.transpose_a ? s.m : s.k;
  const std::int64_t b_rows = s.transpose_b ? s.n : s.k, b_cols = s.transpose_b ? s.k : s.n;
  const std::int64_t lda = s.lda ? s.lda : a_cols, ldb = s.ldb ? s.ldb : b_cols, ldc = s.ldc ? s.ldc : s.n;
  const auto fill = [&](std::int64_t n, DType dtype) {
    std::vector<double> v(static_cast<std::size_t>(n));
    for (double& x : v) x = rounded(random.normal(), dtype);
    return v;
  };
  Case c{s, fill(a_rows * lda, s.dtype), fill(b_rows * ldb, s.dtype), fill(s.n, s.dtype), fill(s.m * ldc, s.out)};
  c.spec.lda = lda;
  c.spec.ldb = ldb;
  c.spec.ldc = ldc;
  return c;
}

double activated(double x, Activation a) {
  if (a == Activation::kGeluErf) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  if (a == Activation::kGeluTanh)
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
  return x;
}

struct Outcome {
  Bytes c, pre;
};

Outcome run_case(const Case& t) {
  const GemmSpec& s = t.spec;
  const Bytes a = stored(t.a, s.dtype), b = stored(t.b, s.dtype), bias = stored(t.bias, s.dtype);
  Outcome out{stored(t.c, s.out), stored(t.c, s.out)};
  const Gemm gemm(s);
  Bytes workspace(gemm.workspace_bytes());
  gemm.run({a.data(), b.data(), s.bias ? bias.data() : nullptr, out.c.data(),
            s.keep_preactivation ? out.pre.data() : nullptr, workspace.data()});
  return out;
}

double reference(const Case& t, std::int64_t i, std::int64_t j, double& magnitude) {
  const GemmSpec& s = t.spec;
  double sum = 0;
  magnitude = 1;
  for (std::int64_t p = 0; p < s.k; ++p) {
    const double x = t.a[s.transpose_a ? p * s.lda + i : i * s.lda + p];
    const double y = t.b[s.transpose_b ? j * s.ldb + p : p * s.ldb + j];
    sum += x * y;
    magnitude += std::abs(x * y);
  }
  if (s.bias) sum += t.bias[j];
  if (s.accumulate) sum += t.c[i * s.ldc + j];
  return sum;
}

void compare(const Case& t, const Outcome& out) {
  const GemmSpec& s = t.spec;
  const std::vector<double> c = loaded(out.c, s.out), pre = loaded(out.pre, s.out);
  const double unit = epsilon(s.dtype == DType::kF64 ? DType::kF64 : DType::kF32);
  int failures = 0;
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < s.ldc && failures < 5; ++j) {
      if (j >= s.n) {  // the gap between rows belongs to somebody else
        if (c[i * s.ldc + j] != t.c[i * s.ldc + j]) ++failures, ADD_FAILURE() << "wrote into the gap at row " << i;
        continue;
      }
      double magnitude = 0;
      const double want_pre = reference(t, i, j, magnitude);
      const double tolerance = 10 * unit * magnitude;
      double got = c[i * s.ldc + j], want = want_pre;
      if (s.activation != Activation::kNone) {
        const double x = s.keep_preactivation ? pre[i * s.ldc + j] : rounded(want_pre, s.out);
        if (s.keep_preactivation && std::abs(x - want_pre) > tolerance + epsilon(s.out) * std::abs(want_pre))
          ++failures, ADD_FAILURE() << "pre-activation " << x << " instead of " << want_pre;
        want = activated(x, s.activation);
      }
      if (!(std::abs(got - want) <= tolerance + 1.01 * epsilon(s.out) * std::abs(want)))
        ++failures, ADD_FAILURE() << "c[" << i << ", " << j << "] = " << got << " instead of " << want;
    }
  }
}

class GemmIsa : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { set_isa_limit(GetParam()); }
  void TearDown() override { set_isa_limit(Isa::kAvx512); }
};
INSTANTIATE_TEST_SUITE_P(, GemmIsa, testing::Values(Isa::kBase, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& i) { return std::string(name_of(i.param)); });

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

std::string describe(const GemmSpec& s) {
  return std::string(name_of(s.dtype)) + " to " + std::string(name_of(s.out)) + " " + std::to_string(s.m) + "x" +
         std::to_string(s.n) + "x" + std::to_string(s.k) + (s.transpose_a ? " T" : " N") + (s.transpose_b ? "T" : "N") +
         (s.accumulate ? " +=" : "") + (s.bias ? " bias" : "") + " act " +
         std::to_string(static_cast<int>(s.activation));
}

TEST_P(GemmIsa, AgreesWithTheReferenceInEveryFormAndType) {
  const std::int64_t sizes[][3] = {{1, 1, 1},    {3, 5, 7},     {17, 33, 65},  {70, 100, 48},
                                   {1, 300, 40}, {530, 24, 33}, {64, 96, 300}, {40, 1100, 16}};
  std::uint64_t seed = 1;
  for (const DType dtype : kTypes)
    for (const auto& size : sizes)
      for (int form = 0; form < 4; ++form) {
        GemmSpec s{.m = size[0],
                   .n = size[1],
                   .k = size[2],
                   .transpose_a = (form & 1) != 0,
                   .transpose_b = (form & 2) != 0,
                   .dtype = dtype,
                   .out = dtype};
        SCOPED_TRACE(describe(s));
        const Case t = make_case(s, seed++);
        compare(t, run_case(t));
      }
}

TEST_P(GemmIsa, AddsIntoC) {
  for (const DType dtype : kTypes)
    for (const DType out : {dtype, dtype == DType::kF64 ? DType::kF64 : DType::kF32}) {
      GemmSpec s{.m = 90, .n = 50, .k = 130, .transpose_a = true, .dtype = dtype, .out = out, .accumulate = true};
      SCOPED_TRACE(describe(s));
      const Case t = make_case(s, 7);
      compare(t, run_case(t));
      s.accumulate = false;
      const Case set = make_case(s, 8);
      compare(set, run_case(set));
    }
}

TEST_P(GemmIsa, BiasActivationAndPreactivation) {
  for (const DType dtype : kTypes)
    for (const Activation a : {Activation::kNone, Activation::kGeluErf, Activation::kGeluTanh})
      for (const std::int64_t m : {5, 600}) {
        GemmSpec s{.m = m,
                   .n = 75,
                   .k = 20,
                   .transpose_b = true,
                   .dtype = dtype,
                   .out = dtype,
                   .bias = true,
                   .activation = a,
                   .keep_preactivation = a != Activation::kNone};
        SCOPED_TRACE(describe(s));
        const Case t = make_case(s, 11);
        const Outcome kept = run_case(t);
        compare(t, kept);
        Case without = t;
        without.spec.keep_preactivation = false;
        EXPECT_EQ(run_case(without).c, kept.c) << "keeping the pre-activation must not change the result";
      }
}

TEST_P(GemmIsa, SubMatrices) {
  for (const DType dtype : kTypes)
    for (int form = 0; form < 4; ++form)
      for (const std::int64_t m : {20, 520}) {
        GemmSpec s{.m = m,
                   .n = 70,
                   .k = 36,
                   .transpose_a = (form & 1) != 0,
                   .transpose_b = (form & 2) != 0,
                   .dtype = dtype,
                   .out = dtype,
                   .lda = 600,
                   .ldb = 90,
                   .ldc = 83,
                   .accumulate = form == 2};
        SCOPED_TRACE(describe(s));
        const Case t = make_case(s, 13);
        compare(t, run_case(t));
      }
}

TEST_P(GemmIsa, SameBitsForAnyNumberOfThreads) {
  const int before = threads();
  for (const DType dtype : kTypes)
    for (int form = 0; form < 4; ++form)
      for (const std::int64_t m : {48, 700}) {
        GemmSpec s{.m = m,
                   .n = 200,
                   .k = 90,
                   .transpose_a = (form & 1) != 0,
                   .transpose_b = (form & 2) != 0,
                   .dtype = dtype,
                   .out = dtype,
                   .activation = Activation::kGeluErf};
        const Case t = make_case(s, 17);
        set_threads(1);
        const Outcome one = run_case(t);
        for (const int count : {2, 3, 8}) {
          set_threads(count);
          EXPECT_EQ(run_case(t).c, one.c) << describe(s) << " on " << count << " threads";
        }
      }
  set_threads(before);
}

TEST_P(GemmIsa, GeluIsAccurateOverItsWholeRange) {
  for (const Activation a : {Activation::kGeluErf, Activation::kGeluTanh}) {
    Case t;
    t.spec = {.m = 1, .n = 2401, .k = 1, .lda = 1, .ldb = 2401, .ldc = 2401, .activation = a};
    t.a = {1.0};
    for (int i = 0; i < 2401; ++i) t.b.push_back(rounded((i - 1200) / 100.0, DType::kF32));
    t.c.assign(2401, 0.0);
    const std::vector<double> c = loaded(run_case(t).c, DType::kF32);
    for (int i = 0; i < 2401; ++i) {
      const double x = t.b[i];
      const double want = a == Activation::kGeluErf
                              ? 0.5 * x * std::erfc(-x / std::sqrt(2.0))
                              : x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
      // Relative, so in the left tail too: the rounding of the exponent grows with its size. Below 2^-126 flush to
      // zero.
      EXPECT_NEAR(c[i], want, std::abs(want) * (5e-7 + 1.5e-7 * x * x * std::max(1.0, std::abs(x) / 4)) + 1e-36) << x;
    }
  }
}

TEST(Gemm, EmptyProducts) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Case t = make_case({.m = 4, .n = 6, .k = 0, .dtype = dtype, .out = dtype}, 3);
    compare(t, run_case(t));
    t.spec.accumulate = true;
    compare(t, run_case(t));
    run_case(make_case({.m = 0, .n = 6, .k = 5, .dtype = dtype, .out = dtype}, 3));
    run_case(make_case({.m = 6, .n = 0, .k = 5, .dtype = dtype, .out = dtype}, 3));
  }
}

std::string refusal(const GemmSpec& s) {
  try {
    const Gemm gemm(s);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Gemm, RefusesSpecsWithoutSense) {
  EXPECT_THAT(refusal({.m = -1, .n = 1, .k = 1}), HasSubstr("negative size"));
  EXPECT_THAT(refusal({.m = 1, .n = 1, .k = 1, .dtype = DType::kI32, .out = DType::kI32}), HasSubstr("floating-point"));
  EXPECT_THAT(refusal({.m = 1, .n = 1, .k = 1, .dtype = DType::kF32, .out = DType::kBF16}), HasSubstr("result's type"));
  EXPECT_THAT(refusal({.m = 1, .n = 4, .k = 1, .ldc = 3}), HasSubstr("leading dimension"));
  EXPECT_THAT(refusal({.m = 1, .n = 1, .k = 1, .accumulate = true, .activation = Activation::kGeluErf}),
              HasSubstr("exclude"));
  EXPECT_THAT(refusal({.m = 1, .n = 1, .k = 1, .keep_preactivation = true}), HasSubstr("no activation"));
  EXPECT_THAT(refusal({.m = 1, .n = 1, .k = 0, .bias = true}), HasSubstr("no terms"));
}

}  // namespace
}  // namespace convoy::cpu
