#include "cpu/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  AttentionSpec spec;  // strides filled in
  std::vector<double> q, k, v, d_o;
  std::vector<std::int32_t> seq_start, key_begin, key_end;
  std::vector<std::int64_t> token_keys;
  std::uint64_t seed = 0x123456789abcdefULL;
};

struct Gradients {
  std::vector<double> o, lse, dq, dk, dv;
};

Case make_case(const AttentionSpec& given, const std::vector<std::int32_t>& documents, std::uint64_t seed = 5) {
  const std::int64_t keys = given.keys ? given.keys : given.tokens;
  Case c{given, {}, {}, {}, {}, {}, {}, {}, {}};
  AttentionSpec& s = c.spec;
  s.keys = keys;
  s.q_stride = s.heads * s.head_dim + 6;
  s.k_stride = s.kv_heads * s.head_dim + 2;
  s.v_stride = s.kv_heads * s.head_dim;
  s.o_stride = s.heads * s.head_dim + 4;
  RandomStream random(seed, 1);
  const auto fill = [&](std::int64_t n, double size) {
    std::vector<double> x(static_cast<std::size_t>(n));
    for (double& e : x) e = rounded(size * random.normal(), s.dtype);
    return x;
  };
  c.q = fill(s.tokens * s.q_stride, 1.5);
  c.k = fill(keys * s.k_stride, 1.5);
  c.v = fill(keys * s.v_stride, 1);
  c.d_o = fill(s.tokens * s.o_stride, 1);
  std::int32_t start = 0;
  for (const std::int32_t length : documents) {
    c.seq_start.insert(c.seq_start.end(), static_cast<std::size_t>(length), start);
    start += length;
  }
  for (std::int64_t t = 0; t < s.tokens; ++t) c.token_keys.push_back(static_cast<std::int64_t>(random.bits64()));
  return c;
}

struct Span {
  std::int64_t origin, begin, end;
};
Span keys_of(const Case& c, std::int64_t t) {
  const AttentionSpec& s = c.spec;
  if (s.mask == AttentionMask::kRanges) return {c.key_begin[t], c.key_begin[t], c.key_end[t]};
  Span r{c.seq_start[t], c.seq_start[t], t + 1};
  while (s.mask == AttentionMask::kDocument && r.end < s.tokens && c.seq_start[r.end] == c.seq_start[t]) ++r.end;
  if (s.window > 0) {
    r.begin = std::max(r.begin, t - s.window + 1);
    r.end = std::min(r.end, t + s.window);
  }
  return r;
}

double keep_factor(const Case& c, std::int64_t h, std::int64_t t, std::int64_t relative) {
  const float p = static_cast<float>(c.spec.dropout);
  if (p == 0) return 1;
  const auto token = static_cast<std::uint64_t>(c.token_keys[t]);
  const PhiloxCounter words =
      philox({static_cast<std::uint32_t>(relative / 4), c.spec.use * 65536 + static_cast<std::uint32_t>(h),
              static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(token >> 32)},
             philox_key(c.seed));
  return to_unit(words[relative % 4]) >= p ? 1 / (1 - static_cast<double>(p)) : 0;
}

double dot(const double* a, const double* b, std::int64_t n) {
  double s = 0;
  for (std::int64_t i = 0; i < n; ++i) s += a[i] * b[i];
  return s;
}

// The plain definition, one query and head at a time.
void add_query(const Case& c, std::int64_t h, std::int64_t t, Gradients& g) {
  const AttentionSpec& s = c.spec;
  const std::int64_t D = s.head_dim, kv = h / (s.heads / s.kv_heads);
  const double scale = s.scale > 0 ? s.scale : 1 / std::sqrt(static_cast<double>(D));
  const Span r = keys_of(c, t);
  const double* q = &c.q[t * s.q_stride + h * D];
  const double* d_o = &c.d_o[t * s.o_stride + h * D];
  double* o = &g.o[t * s.o_stride + h * D];
  double& lse = g.lse[h * s.tokens + t];
  std::fill(o, o + D, 0.0);
  std::fill(&g.dq[t * s.q_stride + h * D], &g.dq[t * s.q_stride + h * D] + D, 0.0);
  lse = -kInfinity;
  if (r.begin >= r.end) return;
  std::vector<double> p;
  for (std::int64_t j = r.begin; j < r.end; ++j) p.push_back(scale * dot(q, &c.k[j * s.k_stride + kv * D], D));
  const double top = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (const double x : p) sum += std::exp(x - top);
  lse = top + std::log(sum);
  for (std::int64_t j = r.begin; j < r.end; ++j) {
    const double kept = std::exp(p[j - r.begin] - lse) * keep_factor(c, h, t, j - r.origin);
    for (std::int64_t d = 0; d < D; ++d) o[d] += kept * c.v[j * s.v_stride + kv * D + d];
  }
  const double delta = dot(o, d_o, D);
  for (std::int64_t j = r.begin; j < r.end; ++j) {
    const double soft = std::exp(p[j - r.begin] - lse), factor = keep_factor(c, h, t, j - r.origin);
    const double ds = scale * soft * (dot(d_o, &c.v[j * s.v_stride + kv * D], D) * factor - delta);
    for (std::int64_t d = 0; d < D; ++d) {
      g.dq[t * s.q_stride + h * D + d] += ds * c.k[j * s.k_stride + kv * D + d];
      g.dk[j * s.k_stride + kv * D + d] += ds * q[d];
      g.dv[j * s.v_stride + kv * D + d] += soft * factor * d_o[d];
    }
  }
}

constexpr double kUntouched = 77;  // exact in every type

Gradients reference(const Case& c) {
  const AttentionSpec& s = c.spec;
  Gradients g{std::vector<double>(c.d_o.size(), kUntouched), std::vector<double>(s.heads * s.tokens),
              std::vector<double>(c.q.size(), kUntouched), std::vector<double>(c.k.size(), kUntouched),
              std::vector<double>(c.v.size(), kUntouched)};
  for (std::int64_t j = 0; j < s.keys; ++j) {
    std::fill_n(&g.dk[j * s.k_stride], s.kv_heads * s.head_dim, 0.0);
    std::fill_n(&g.dv[j * s.v_stride], s.kv_heads * s.head_dim, 0.0);
  }
  for (std::int64_t h = 0; h < s.heads; ++h)
    for (std::int64_t t = 0; t < s.tokens; ++t) add_query(c, h, t, g);
  return g;
}

struct Outcome {
  Bytes o, lse, dq, dk, dv;
  bool operator==(const Outcome&) const = default;
};

Outcome run_case(const Case& c) {
  const AttentionSpec& s = c.spec;
  const Attention attention(s);
  const DType real = s.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const Bytes q = stored(c.q, s.dtype), k = stored(c.k, s.dtype), v = stored(c.v, s.dtype),
              d_o = stored(c.d_o, s.dtype);
  const auto untouched = [](std::size_t n, DType dtype) { return stored(std::vector<double>(n, kUntouched), dtype); };
  Outcome out{untouched(c.d_o.size(), s.dtype), untouched(s.heads * s.tokens, real), untouched(c.q.size(), s.dtype),
              untouched(c.k.size(), s.dtype), untouched(c.v.size(), s.dtype)};
  AttentionInput in{
      q.data(), k.data(), v.data(), c.seq_start.data(), c.key_begin.data(), c.key_end.data(), c.token_keys.data(),
      c.seed};
  // Workspaces full of NaN: nothing may be read before it is written.
  Bytes forward(attention.forward_workspace_bytes(), 0xff), backward(attention.backward_workspace_bytes(), 0xff);
  attention.forward(in, out.o.data(), out.lse.data(), forward.data());
  attention.backward(in, out.o.data(), out.lse.data(), d_o.data(), out.dq.data(), out.dk.data(), out.dv.data(),
                     backward.data());
  return out;
}

void compare(const std::string& name, const Bytes& got_bytes, const std::vector<double>& want, DType dtype,
             double tolerance) {
  const std::vector<double> got = loaded(got_bytes, dtype);
  double size = 4;  // the size of the terms, even where they cancel
  for (const double w : want)
    if (std::isfinite(w) && w != kUntouched) size = std::max(size, std::abs(w));
  int failures = 0;
  for (std::size_t i = 0; i < want.size() && failures < 5; ++i) {
    const bool fine = std::isfinite(want[i]) && want[i] != kUntouched
                          ? std::abs(got[i] - want[i]) <= tolerance * (size + std::abs(want[i]))
                          : got[i] == want[i];
    if (!fine) ++failures, ADD_FAILURE() << name << "[" << i << "] = " << got[i] << " instead of " << want[i];
  }
}

void check_case(const Case& c) {
  const AttentionSpec& s = c.spec;
  SCOPED_TRACE(std::string(name_of(s.dtype)) + " tokens " + std::to_string(s.tokens) + " keys " +
               std::to_string(s.keys) + " heads " + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " D " +
               std::to_string(s.head_dim) + " mask " + std::to_string(static_cast<int>(s.mask)) + " window " +
               std::to_string(s.window) + " dropout " + std::to_string(s.dropout));
  const DType real = s.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const Gradients want = reference(c);
  const Outcome got = run_case(c);
  // The stored o enters the backward pass through rowsum(dO o), and so does its rounding.
  const double exact = s.dtype == DType::kF64 ? 1e-13 : 3e-6, tolerance = exact + 2 * epsilon(s.dtype);
  compare("o", got.o, want.o, s.dtype, tolerance);
  compare("lse", got.lse, want.lse, real, exact);
  compare("dq", got.dq, want.dq, s.dtype, tolerance);
  compare("dk", got.dk, want.dk, s.dtype, tolerance);
  compare("dv", got.dv, want.dv, s.dtype, tolerance);
}

class AttentionIsa : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { set_isa_limit(GetParam()); }
  void TearDown() override { set_isa_limit(Isa::kAvx512); }
};
INSTANTIATE_TEST_SUITE_P(, AttentionIsa, testing::Values(Isa::kBase, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& i) { return std::string(name_of(i.param)); });

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

TEST_P(AttentionIsa, EveryHeadSizeAndType) {
  for (const DType dtype : kTypes)
    for (const std::int64_t dim : {2, 8, 16, 64, 80, 128, 256})
      check_case(make_case({.dtype = dtype, .tokens = 150, .heads = 2, .kv_heads = 1, .head_dim = dim}, {3, 140, 7}));
}

TEST_P(AttentionIsa, RaggedDocumentsGroupsAndWindows) {
  for (const DType dtype : {DType::kF32, DType::kF64})
    for (const AttentionMask mask : {AttentionMask::kCausal, AttentionMask::kDocument})
      for (const std::int64_t window : {0, 1, 5, 100}) {
        const AttentionSpec s{.dtype = dtype,
                              .tokens = 333,
                              .heads = 6,
                              .kv_heads = 2,
                              .head_dim = 10,
                              .mask = mask,
                              .window = window,
                              .scale = 0.2};
        check_case(make_case(s, {1, 1, 65, 200, 2, 64}));
        check_case(make_case(s, {333}));
      }
}

TEST_P(AttentionIsa, Dropout) {
  for (const DType dtype : kTypes)
    for (const std::int64_t window : {0, 50})
      check_case(make_case({.dtype = dtype,
                            .tokens = 300,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .window = window,
                            .dropout = 0.3,
                            .use = 9},
                           {5, 90, 201, 4}));
  check_case(make_case(
      {.tokens = 100, .heads = 1, .kv_heads = 1, .head_dim = 8, .mask = AttentionMask::kDocument, .dropout = 0.6},
      {31, 69}));
}

TEST_P(AttentionIsa, CrossAttentionOverRangesOfAnotherSequence) {
  for (const std::int64_t keys : {1, 90, 400}) {
    Case c = make_case({.tokens = 130,
                        .keys = keys,
                        .heads = 2,
                        .kv_heads = 2,
                        .head_dim = 20,
                        .mask = AttentionMask::kRanges,
                        .dropout = 0.1},
                       {});
    for (std::int64_t t = 0; t < 130; ++t) {  // ranges in any order, some empty
      c.key_begin.push_back(static_cast<std::int32_t>((t * 37) % keys));
      c.key_end.push_back(static_cast<std::int32_t>(std::min<std::int64_t>(keys, c.key_begin.back() + t % 60)));
    }
    check_case(c);
  }
}

TEST_P(AttentionIsa, SameBitsForAnyNumberOfThreads) {
  const int before = threads();
  for (const DType dtype : kTypes) {
    const Case c = make_case({.dtype = dtype, .tokens = 300, .heads = 4, .kv_heads = 2, .head_dim = 24, .dropout = 0.1},
                             {100, 150, 50});
    set_threads(1);
    const Outcome one = run_case(c);
    for (const int count : {2, 3, 8}) {
      set_threads(count);
      EXPECT_TRUE(run_case(c) == one) << name_of(dtype) << " on " << count << " threads";
    }
  }
  set_threads(before);
}

TEST_P(AttentionIsa, OtherDocumentsDoNotChangeABit) {
  // The rows of a document hold the same bits wherever other documents of whole blocks lie before it.
  const AttentionSpec s{.tokens = 128, .heads = 2, .kv_heads = 1, .head_dim = 32};
  Case alone = make_case(s, {128});
  AttentionSpec two = s;
  two.tokens = 256;
  Case both = make_case(two, {128, 128}, 99);
  const auto put = [](std::vector<double>& to, const std::vector<double>& from) {
    std::copy(from.begin(), from.end(), to.end() - static_cast<std::ptrdiff_t>(from.size()));
  };
  put(both.q, alone.q);
  put(both.k, alone.k);
  put(both.v, alone.v);
  put(both.d_o, alone.d_o);
  const Outcome a = run_case(alone), b = run_case(both);
  const auto tail = [](const Bytes& x, std::size_t n) {
    return Bytes(x.end() - static_cast<std::ptrdiff_t>(n), x.end());
  };
  EXPECT_EQ(a.o, tail(b.o, a.o.size()));
  EXPECT_EQ(a.dq, tail(b.dq, a.dq.size()));
}

TEST_P(AttentionIsa, NanIsNotSwallowed) {
  Case c = make_case({.tokens = 10, .heads = 1, .kv_heads = 1, .head_dim = 8}, {10});
  c.q[4 * c.spec.q_stride] = std::nan("");
  const Outcome out = run_case(c);
  const std::vector<double> o = loaded(out.o, DType::kF32), dk = loaded(out.dk, DType::kF32);
  EXPECT_TRUE(std::isnan(o[4 * c.spec.o_stride]));
  EXPECT_TRUE(std::isfinite(o[5 * c.spec.o_stride]));
  EXPECT_TRUE(std::isnan(dk[0]));
}

TEST_P(AttentionIsa, LargeScoresStayFinite) {
  Case c = make_case({.tokens = 70, .heads = 1, .kv_heads = 1, .head_dim = 8, .scale = 40}, {70});
  const Outcome out = run_case(c);
  for (const double x : loaded(out.o, DType::kF32)) ASSERT_TRUE(std::isfinite(x));
  for (const double x : loaded(out.dq, DType::kF32)) ASSERT_TRUE(std::isfinite(x));
}

TEST(Attention, PackedRowsOfQueriesKeysAndValues) {
  const Attention attention({.dtype = DType::kBF16, .tokens = 4, .heads = 6, .kv_heads = 2, .head_dim = 8});
  EXPECT_EQ(attention.spec().q_stride, 80);
  EXPECT_EQ(attention.spec().o_stride, 48);
  const std::vector<std::uint16_t> row(80);
  const AttentionInput in = attention.packed(row.data());
  EXPECT_EQ(in.q, row.data());
  EXPECT_EQ(in.k, row.data() + 48);
  EXPECT_EQ(in.v, row.data() + 64);
}

std::string refusal(const AttentionSpec& s) {
  try {
    const Attention attention(s);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Attention, RefusesSpecsWithoutSense) {
  EXPECT_THAT(refusal({.tokens = 1, .heads = 3, .kv_heads = 2}), HasSubstr("multiple of the key-value heads"));
  EXPECT_THAT(refusal({.tokens = 1, .head_dim = 258}), HasSubstr("even and at most 256"));
  EXPECT_THAT(refusal({.tokens = 1, .head_dim = 7}), HasSubstr("even and at most 256"));
  EXPECT_THAT(refusal({.dtype = DType::kI32, .tokens = 1}), HasSubstr("floating-point"));
  EXPECT_THAT(refusal({.tokens = 1, .dropout = 1}), HasSubstr("dropout"));
  EXPECT_THAT(refusal({.tokens = 1, .keys = 2}), HasSubstr("only ranges"));
  EXPECT_THAT(refusal({.tokens = 1, .keys = 2, .mask = AttentionMask::kRanges, .window = 3}), HasSubstr("window"));
  EXPECT_THAT(refusal({.tokens = 1, .scale = -1}), HasSubstr("scale"));
  EXPECT_THAT(refusal({.tokens = 1, .q_stride = 5}), HasSubstr("stride"));
  EXPECT_THAT(refusal({.tokens = -1}), HasSubstr("number of tokens"));
}

TEST(Attention, RefusesDocumentsAndRangesOutOfBounds) {
  const AttentionSpec s{.tokens = 3, .heads = 1, .kv_heads = 1, .head_dim = 2};
  Case c = make_case(s, {3});
  c.seq_start[1] = 2;
  EXPECT_THROW(run_case(c), Error);
  AttentionSpec ranges = s;
  ranges.mask = AttentionMask::kRanges;
  Case r = make_case(ranges, {});
  r.key_begin = {0, 0, 0};
  r.key_end = {1, 2, 4};
  EXPECT_THROW(run_case(r), Error);
}

TEST(Attention, NoTokens) {
  const Attention attention({.tokens = 0});
  Bytes workspace(std::max(attention.forward_workspace_bytes(), attention.backward_workspace_bytes()) + 64);
  attention.forward({}, nullptr, nullptr, workspace.data());
  attention.backward({}, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, workspace.data());
}

}  // namespace
}  // namespace convoy::cpu
