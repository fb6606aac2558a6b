#include "cpu/cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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
  CrossEntropySpec spec;
  std::vector<double> x, w, dw;  // dw: before the run
  std::vector<std::int32_t> targets;
  float grad_scale = 0.37f;
};

Case make_case(const CrossEntropySpec& s, double share_with_target = 0.6, std::uint64_t seed = 3) {
  Case c{s, {}, {}, {}, {}};
  RandomStream random(seed, 2);
  const auto fill = [&](std::int64_t n, double size, DType dtype) {
    std::vector<double> v(static_cast<std::size_t>(n));
    for (double& e : v) e = rounded(size * random.normal(), dtype);
    return v;
  };
  c.x = fill(s.tokens * s.dim, 1, s.dtype);
  c.w = fill(s.vocab * s.dim, 2 / std::sqrt(static_cast<double>(s.dim)), s.dtype);
  c.dw = fill(s.vocab * s.dim, 1, DType::kF32);
  for (std::int64_t t = 0; t < s.tokens; ++t)
    c.targets.push_back(random.uniform() < share_with_target
                            ? static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(s.vocab)))
                            : -1);
  return c;
}

struct Expected {
  double loss = 0;
  std::int64_t count = 0, correct = 0;
  std::vector<double> dx, dw;
};

void add_row(const Case& c, std::int64_t t, Expected& e) {
  const CrossEntropySpec& s = c.spec;
  const double eps = s.label_smoothing, V = static_cast<double>(s.vocab);
  std::vector<double> z(static_cast<std::size_t>(s.vocab));
  for (std::int64_t v = 0; v < s.vocab; ++v)
    for (std::int64_t d = 0; d < s.dim; ++d) z[v] += c.x[t * s.dim + d] * c.w[v * s.dim + d];
  const auto best = std::max_element(z.begin(), z.end());
  double sum = 0, mean = 0;
  for (const double v : z) sum += std::exp(v - *best), mean += v / V;
  const double lse = *best + std::log(sum);
  e.loss += (1 - eps) * (lse - z[c.targets[t]]) + eps * (lse - mean) + s.z_loss * lse * lse;
  ++e.count;
  if (best - z.begin() == c.targets[t]) ++e.correct;
  for (std::int64_t v = 0; v < s.vocab; ++v) {
    double g = std::exp(z[v] - lse) * (1 + 2 * s.z_loss * lse) - eps / V;
    if (v == c.targets[t]) g -= 1 - eps;
    g *= static_cast<double>(c.grad_scale);
    for (std::int64_t d = 0; d < s.dim; ++d) {
      e.dx[t * s.dim + d] += g * c.w[v * s.dim + d];
      e.dw[v * s.dim + d] += g * c.x[t * s.dim + d];
    }
  }
}

Expected reference(const Case& c) {
  Expected e;
  e.dx.assign(c.x.size(), 0);
  e.dw = c.spec.accumulate_dw ? c.dw : std::vector<double>(c.w.size());
  for (std::int64_t t = 0; t < c.spec.tokens; ++t)
    if (c.targets[t] >= 0) add_row(c, t, e);
  return e;
}

struct Outcome {
  double loss = 0;
  std::int64_t count = 0, correct = 0;
  Bytes dx, dw;
  bool operator==(const Outcome&) const = default;
};

Outcome run_case(const Case& c) {
  const CrossEntropySpec& s = c.spec;
  const CrossEntropy head(s);
  const Bytes x = stored(c.x, s.dtype), w = stored(c.w, s.dtype);
  Outcome out;
  out.dx = stored(std::vector<double>(c.x.size(), 77), s.dtype);
  out.dw = stored(c.dw, s.dtype == DType::kF64 ? DType::kF64 : DType::kF32);
  Bytes workspace(head.workspace_bytes(), 0xff);
  head.run({x.data(), w.data(), c.targets.data(), &out.loss, &out.count, &out.correct, &c.grad_scale, out.dx.data(),
            out.dw.data(), workspace.data()});
  return out;
}

void compare(const std::string& name, const std::vector<double>& got, const std::vector<double>& want,
             double tolerance) {
  double size = 0;
  for (const double w : want) size = std::max(size, std::abs(w));
  int failures = 0;
  for (std::size_t i = 0; i < want.size() && failures < 5; ++i)
    if (!(std::abs(got[i] - want[i]) <= tolerance * (size + std::abs(want[i]))))
      ++failures, ADD_FAILURE() << name << "[" << i << "] = " << got[i] << " instead of " << want[i];
}

void check_case(const Case& c) {
  const CrossEntropySpec& s = c.spec;
  SCOPED_TRACE(std::string(name_of(s.dtype)) + " tokens " + std::to_string(s.tokens) + " dim " + std::to_string(s.dim) +
               " vocab " + std::to_string(s.vocab) + " chunk " + std::to_string(s.chunk_rows) + " smoothing " +
               std::to_string(s.label_smoothing) + " z " + std::to_string(s.z_loss));
  const Expected want = reference(c);
  const Outcome got = run_case(c);
  const bool f64 = s.dtype == DType::kF64;
  EXPECT_NEAR(got.loss, want.loss, (f64 ? 1e-12 : 3e-6) * (std::abs(want.loss) + 1));
  EXPECT_EQ(got.count, want.count);
  if (s.count_correct) {
    EXPECT_EQ(got.correct, want.correct);
  }
  if (!s.backward) return;
  // bf16 rounds the logits' gradient too, where it has instructions for the products.
  const double tolerance = (f64 ? 1e-13 : 3e-6) + 2 * epsilon(s.dtype);
  compare("dx", loaded(got.dx, s.dtype), want.dx, tolerance);
  compare("dw", loaded(got.dw, f64 ? DType::kF64 : DType::kF32), want.dw, tolerance);
  for (std::int64_t t = 0; t < s.tokens; ++t)
    for (std::int64_t d = 0; d < s.dim && c.targets[t] < 0; ++d)
      ASSERT_EQ(loaded(got.dx, s.dtype)[t * s.dim + d], 0) << "row " << t << " has no target";
}

class CrossEntropyIsa : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { set_isa_limit(GetParam()); }
  void TearDown() override { set_isa_limit(Isa::kAvx512); }
};
INSTANTIATE_TEST_SUITE_P(, CrossEntropyIsa, testing::Values(Isa::kBase, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& i) { return std::string(name_of(i.param)); });

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

TEST_P(CrossEntropyIsa, LossAndGradients) {
  for (const DType dtype : kTypes)
    for (const std::int64_t vocab : {1, 5, 65, 700, 2100})
      for (const bool accumulate : {false, true})
        check_case(make_case({.dtype = dtype,
                              .tokens = 70,
                              .dim = 24,
                              .vocab = vocab,
                              .chunk_rows = 16,
                              .backward = true,
                              .accumulate_dw = accumulate,
                              .count_correct = true}));
}

TEST_P(CrossEntropyIsa, SmoothingAndZLoss) {
  for (const DType dtype : kTypes)
    for (const double smoothing : {0.0, 0.1, 1.0})
      for (const double z_loss : {0.0, 1e-2})
        check_case(make_case({.dtype = dtype,
                              .tokens = 40,
                              .dim = 18,
                              .vocab = 333,
                              .chunk_rows = 64,
                              .backward = true,
                              .count_correct = true,
                              .label_smoothing = smoothing,
                              .z_loss = z_loss}));
}

TEST_P(CrossEntropyIsa, EvaluationGivesTheTrainingLossAndTouchesNoGradient) {
  for (const DType dtype : kTypes) {
    Case c = make_case({.dtype = dtype,
                        .tokens = 50,
                        .dim = 16,
                        .vocab = 300,
                        .chunk_rows = 8,
                        .backward = true,
                        .count_correct = true});
    const Outcome training = run_case(c);
    c.spec.backward = false;
    check_case(c);
    const Outcome evaluation = run_case(c);
    EXPECT_EQ(evaluation.loss, training.loss);
    EXPECT_EQ(evaluation.correct, training.correct);
    EXPECT_EQ(evaluation.dx, stored(std::vector<double>(c.x.size(), 77), dtype));
    EXPECT_EQ(evaluation.dw, stored(c.dw, dtype == DType::kF64 ? DType::kF64 : DType::kF32));
  }
}

TEST_P(CrossEntropyIsa, NoRowHasATarget) {
  for (const bool accumulate : {false, true}) {
    const Case c = make_case({.tokens = 9,
                              .dim = 8,
                              .vocab = 40,
                              .chunk_rows = 4,
                              .backward = true,
                              .accumulate_dw = accumulate,
                              .count_correct = true},
                             0.0);
    check_case(c);
    EXPECT_EQ(run_case(c).loss, 0);
  }
}

TEST_P(CrossEntropyIsa, OfEqualLogitsTheFirstIsTheAnswer) {
  Case c = make_case({.tokens = 3, .dim = 8, .vocab = 100, .count_correct = true});
  std::fill(c.w.begin(), c.w.end(), 0.0);
  c.targets = {0, 1, 99};
  const Outcome out = run_case(c);
  EXPECT_EQ(out.correct, 1);
  EXPECT_NEAR(out.loss, 3 * std::log(100.0), 1e-5);
}

TEST_P(CrossEntropyIsa, SameBitsForAnyNumberOfThreads) {
  const int before = threads();
  for (const DType dtype : kTypes) {
    const Case c = make_case({.dtype = dtype,
                              .tokens = 90,
                              .dim = 32,
                              .vocab = 1500,
                              .chunk_rows = 32,
                              .backward = true,
                              .count_correct = true,
                              .label_smoothing = 0.1});
    set_threads(1);
    const Outcome one = run_case(c);
    for (const int count : {2, 3, 8}) {
      set_threads(count);
      EXPECT_TRUE(run_case(c) == one) << name_of(dtype) << " on " << count << " threads";
    }
  }
  set_threads(before);
}

TEST_P(CrossEntropyIsa, HugeLogitsAndNan) {
  Case c = make_case({.tokens = 4, .dim = 8, .vocab = 90, .backward = true}, 1.0);
  for (double& x : c.x) x *= 1e4;
  const Outcome huge = run_case(c);
  EXPECT_TRUE(std::isfinite(huge.loss));
  for (const double g : loaded(huge.dx, DType::kF32)) ASSERT_TRUE(std::isfinite(g));
  c.x[3] = std::nan("");
  EXPECT_TRUE(std::isnan(run_case(c).loss));
}

std::string message_of(const Case& c) {
  try {
    run_case(c);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(CrossEntropy, RefusesTargetsOutsideOfTheVocabulary) {
  Case c = make_case({.tokens = 3, .dim = 8, .vocab = 10}, 1.0);
  c.targets[1] = 10;
  EXPECT_THAT(message_of(c), HasSubstr("target token 10 of row 1 is not in the vocabulary of 10"));
  c.targets[1] = -100;
  EXPECT_THAT(message_of(c), HasSubstr("target token -100 of row 1"));
}

TEST(CrossEntropy, RefusesSpecsWithoutSense) {
  EXPECT_THAT(message_of(make_case({.tokens = 1, .dim = 4, .vocab = 4, .chunk_rows = 0})), HasSubstr("not positive"));
  EXPECT_THAT(message_of(make_case({.tokens = 1, .dim = 4, .vocab = 4, .label_smoothing = 1.5})),
              HasSubstr("label smoothing"));
  EXPECT_THAT(message_of(make_case({.tokens = 1, .dim = 4, .vocab = 4, .z_loss = -1})), HasSubstr("z-loss"));
  EXPECT_THAT(message_of(make_case({.dtype = DType::kI32, .tokens = 1, .dim = 4, .vocab = 4})),
              HasSubstr("floating-point"));
}

TEST(CrossEntropy, NoTokens) {
  const Outcome out = run_case(make_case({.tokens = 0, .dim = 4, .vocab = 4, .backward = true}));
  EXPECT_EQ(out.loss, 0);
  EXPECT_EQ(out.count, 0);
  for (const double g : loaded(out.dw, DType::kF32)) EXPECT_EQ(g, 0);
}

}  // namespace
}  // namespace convoy::cpu
