// 8-bit factors and their products on the CPU device, against definitions in double.
#include "graph/ops/fp8.h"

#include <fmt/format.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "cpu/cpu_device.h"
#include "graph/ops/activation.h"
#include "graph/ops/elementwise.h"
#include "passes/differentiate.h"
#include "passes/fp8.h"
#include "passes/fuse.h"
#include "passes/recompute.h"
#include "support/graph_runner.h"

namespace convoy::testing {
namespace {

using Keep = Fp8Quantize::Keep;
using Kind = Fp8Product::Kind;

struct Range {
  DType type;
  double largest;
  double step;  // the most that rounding moves a value that is not subnormal, relative to it
};
constexpr Range kRanges[] = {{DType::kF8E4M3, 448, 1.0 / 16}, {DType::kF8E5M2, 57344, 1.0 / 8}};

struct Fp8Ops : ::testing::Test {
  CpuDevice device;

  double scale_of(const std::vector<double>& values, DType to) {
    Graph graph;
    const auto n = static_cast<std::int64_t>(values.size()) / 16;
    const ValueId x = graph.add_source(Role::kBatch, "x", {DType::kBF16, {16, n}});
    graph.outputs = graph.add_op(Fp8Scale{to}, {x});
    return run_graph(device, graph, {{"x", values}}).at("out0")[0];
  }

  // Scale, codes and transposed codes of one matrix: "out0", "out1", "out2".
  Tensors quantized(const std::vector<double>& values, const Shape& shape, DType to) {
    Graph graph;
    const ValueId x = graph.add_source(Role::kBatch, "x", {DType::kBF16, shape});
    const ValueId scale = graph.add_op(Fp8Scale{to}, {x})[0];
    const auto codes = graph.add_op(Fp8Quantize{to, Keep::kBoth}, {x, scale});
    graph.outputs = {scale, codes[0], codes[1]};
    return run_graph(device, graph, {{"x", values}});
  }
};

std::vector<double> in_bf16(std::vector<double> values, double factor = 1) {
  for (double& v : values) v = static_cast<double>(to_float(to_bf16(static_cast<float>(factor * v))));
  return values;
}

TEST_F(Fp8Ops, AScaleIsThePowerOfTwoThatFillsTheRange) {
  for (const Range& range : kRanges) {
    for (const double factor : {1.0, 1e-6, 3e-20, 7e5, 1e30}) {
      const std::vector<double> x = in_bf16(random_values(256, 3), factor);
      double largest = 0;
      for (const double v : x) largest = std::max(largest, std::fabs(v));
      const double scale = scale_of(x, range.type);
      int exponent = 0;
      EXPECT_EQ(std::frexp(scale, &exponent), 0.5) << scale;
      EXPECT_LE(largest / scale, range.largest);
      EXPECT_GT(largest / (scale / 2), range.largest);
    }
    std::vector<double> x(256, 0.0);
    x[17] = -range.largest;
    EXPECT_EQ(scale_of(x, range.type), 1);
    x[200] = static_cast<double>(to_float(to_bf16(static_cast<float>(range.largest * 1.01))));
    EXPECT_EQ(scale_of(x, range.type), 2);
    EXPECT_EQ(scale_of(std::vector<double>(256, 0.0), range.type), 0x1p-100);
    for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      x[3] = bad;
      EXPECT_TRUE(std::isnan(scale_of(x, range.type))) << bad;
    }
  }
}

TEST_F(Fp8Ops, CodesAreTheRoundedQuotients) {
  const Shape shape{80, 144};  // not whole tiles
  for (const Range& range : kRanges) {
    const std::vector<double> x = in_bf16(random_values(shape.numel(), 5), 0.03);
    const Tensors got = quantized(x, shape, range.type);
    const double scale = got.at("out0")[0];
    const auto expected = [&](std::size_t i) {
      return from_bytes(range.type, to_bytes(range.type, {x[i] / scale}))[0];
    };
    for (std::size_t r = 0; r < 80; ++r) {
      for (std::size_t c = 0; c < 144; ++c) {
        const std::size_t i = r * 144 + c;
        ASSERT_EQ(got.at("out1")[i], expected(i)) << r << " " << c;
        ASSERT_EQ(got.at("out2")[c * 80 + r], expected(i)) << r << " " << c;
        ASSERT_NEAR(expected(i) * scale, x[i], range.step * std::fabs(x[i]) + scale * 0x1p-9);
      }
    }
  }
}

TEST_F(Fp8Ops, OneOfTheTwoAloneIsTheSame) {
  const Shape shape{32, 208};
  const std::vector<double> x = in_bf16(random_values(shape.numel(), 6));
  const Tensors both = quantized(x, shape, DType::kF8E4M3);
  for (const Keep keep : {Keep::kRows, Keep::kTransposed}) {
    Graph graph;
    const ValueId source = graph.add_source(Role::kBatch, "x", {DType::kBF16, shape});
    const ValueId scale = graph.add_op(Fp8Scale{DType::kF8E4M3}, {source})[0];
    graph.outputs = graph.add_op(Fp8Quantize{DType::kF8E4M3, keep}, {source, scale});
    EXPECT_EQ(run_graph(device, graph, {{"x", x}}).at("out0"), both.at(keep == Keep::kRows ? "out1" : "out2"));
  }
}

// A product against the sum in double of the very codes: what is left is the rounding of sums and of the result.
TEST_F(Fp8Ops, ProductsAreThoseOfTheCodes) {
  const std::int64_t m = 48, n = 80, k = 112;
  const Shape sizes[] = {{m, k}, {n, k}};
  for (const Kind kind : {Kind::kForward, Kind::kInputGrad, Kind::kWeightGrad}) {
    for (const bool more : {false, true}) {
      SCOPED_TRACE(fmt::format("kind {} {}", static_cast<int>(kind), more));
      const bool forward = kind == Kind::kForward;
      const DType types[] = {forward ? DType::kF8E4M3 : DType::kF8E5M2, DType::kF8E4M3};
      Graph graph;
      Tensors sources;
      std::vector<ValueId> inputs(6, kNoValue);
      std::vector<std::vector<double>> exact(2);
      for (std::size_t f = 0; f < 2; ++f) {
        const std::string name = f == 0 ? "a" : "b";
        sources[name] = in_bf16(random_values(sizes[f].numel(), 20 + f), f == 0 ? 3e-4 : 0.2);
        const ValueId x = graph.add_source(Role::kBatch, name, {DType::kBF16, sizes[f]});
        inputs[2 + f] = graph.add_op(Fp8Scale{types[f]}, {x})[0];
        inputs[f] = graph.add_op(Fp8Quantize{types[f], Keep::kRows}, {x, inputs[2 + f]})[0];
        const Tensors codes = quantized(sources[name], sizes[f], types[f]);
        const double scale = codes.at("out0")[0];
        for (const double code : codes.at("out1")) exact[f].push_back(code * scale);
      }
      const TensorSpec result{kind == Kind::kWeightGrad ? DType::kF32 : DType::kBF16, {m, n}};
      if (more && forward) {
        sources["bias"] = in_bf16(random_values(n, 30), 1e-3);
        inputs[4] = graph.add_source(Role::kBatch, "bias", {DType::kBF16, {n}});
      } else if (more) {
        sources[kind == Kind::kWeightGrad ? "grad.sum" : "sum"] = in_bf16(random_values(m * n, 31), 1e-3);
        inputs[5] = graph.add_source(kind == Kind::kWeightGrad ? Role::kGradient : Role::kBatch, "sum", result);
      }
      graph.outputs = graph.add_op(Fp8Product(kind), inputs);
      const Tensors got = run_graph(device, graph, sources);
      const std::vector<double>& c = got.begin()->second;
      ASSERT_EQ(static_cast<std::int64_t>(c.size()), m * n);
      for (std::size_t i = 0; i < static_cast<std::size_t>(m); ++i) {
        for (std::size_t j = 0; j < static_cast<std::size_t>(n); ++j) {
          double sum = 0, size = 0;
          for (std::size_t t = 0; t < static_cast<std::size_t>(k); ++t) {
            const double term = exact[0][i * k + t] * exact[1][j * k + t];
            sum += term;
            size += std::fabs(term);
          }
          if (more && forward) sum += sources["bias"][j];
          if (more && !forward) sum += sources[kind == Kind::kWeightGrad ? "grad.sum" : "sum"][i * n + j];
          const double rounding = kind == Kind::kWeightGrad ? 0 : std::fabs(sum) * 0x1p-8;
          ASSERT_NEAR(c[i * n + j], sum, rounding + 1e-5 * size) << i << " " << j;
        }
      }
    }
  }
}

// What overflows spoils the product instead of passing as the largest finite value.
TEST_F(Fp8Ops, WhatIsNotFiniteSpoilsTheProduct) {
  Graph graph;
  const ValueId x = graph.add_source(Role::kBatch, "x", {DType::kBF16, {16, 16}});
  const ValueId scale = graph.add_op(Fp8Scale{DType::kF8E4M3}, {x})[0];
  const ValueId codes = graph.add_op(Fp8Quantize{DType::kF8E4M3, Keep::kRows}, {x, scale})[0];
  graph.outputs = graph.add_op(Fp8Product(Kind::kForward), {codes, codes, scale, scale});
  std::vector<double> values = in_bf16(random_values(256, 40));
  values[100] = std::numeric_limits<double>::infinity();
  const Tensors got = run_graph(device, graph, {{"x", values}});
  for (const double v : got.at("out0")) EXPECT_TRUE(std::isnan(v)) << v;
}

// Two layers with a residual and an activation; the gradients of everything by name.
struct Network {
  Graph graph;
  Tensors sources;
  std::vector<ValueId> weights;

  explicit Network(bool transposed) {
    const auto source = [&](Role role, const char* name, const Shape& shape, std::uint64_t stream, double factor) {
      sources[name] = in_bf16(random_values(shape.numel(), stream), factor);
      return graph.add_source(role, name, {DType::kBF16, shape});
    };
    const auto weight = [&](const char* name, std::int64_t out, std::int64_t in, std::uint64_t stream) {
      weights.push_back(source(Role::kWeight, name, transposed ? Shape{in, out} : Shape{out, in}, stream, 0.2));
      return weights.back();
    };
    const ValueId x = source(Role::kBatch, "x", {32, 64}, 50, 1);
    const ValueId up = weight("up", 96, 64, 51), down = weight("down", 64, 96, 52);
    const ValueId bias = source(Role::kWeight, "bias", {96}, 53, 0.1);
    graph.current_block = 0;
    const ValueId in = graph.add_op(Scale{0.5}, {x})[0];  // an activation that only the product keeps
    const ValueId wide = graph.add_op(Gelu{true}, {graph.add_op(Linear{transposed}, {in, up, bias})[0]})[0];
    const ValueId out = graph.add_op(Add{}, {x, graph.add_op(Linear{transposed}, {wide, down})[0]})[0];
    graph.current_block = -1;
    graph.outputs = {out};
    const ValueId seed = graph.add_source(Role::kBatch, "seed", graph.spec(out));
    sources["seed"] = in_bf16(random_values(32 * 64, 54), 1e-3);
    differentiate(graph, {{{out, seed}}, {up, down, bias}, false});
  }
};

TEST_F(Fp8Ops, GradientsComeNearThoseOfBf16OnTheWholePath) {
  for (const bool transposed : {false, true}) {
    Network exact(transposed), eight(transposed);
    EXPECT_TRUE(quantize_products(eight.graph, eight.weights).empty());
    for (Graph* graph : {&exact.graph, &eight.graph}) {
      recompute(*graph, {});
      fuse(*graph);
    }
    const Tensors expected = run_graph(device, exact.graph, exact.sources);
    const Tensors got = run_graph(device, eight.graph, eight.sources);
    for (const auto& [name, values] : expected) {
      double difference = 0, size = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        difference += (got.at(name)[i] - values[i]) * (got.at(name)[i] - values[i]);
        size += values[i] * values[i];
      }
      const double error = std::sqrt(difference / size);
      // Rounding moves a value by a uniform share of its last place, on average by 1/41 with E4M3's three bits, by 1/20
      // with E5M2's two; a path meets at most three of each. A bias gradient of the last layer meets none.
      EXPECT_LT(error, 3 * (1.0 / 41 + 1.0 / 20)) << name << (transposed ? " transposed" : "");
      EXPECT_GT(error, 1e-3) << name << ": nothing was in 8 bits";
    }
  }
}

TEST_F(Fp8Ops, AnyNumberOfThreadsGivesTheSameBits) {
  Network network(false);
  quantize_products(network.graph, network.weights);
  recompute(network.graph, {});
  fuse(network.graph);
  set_threads(1);
  const Tensors one = run_graph(device, network.graph, network.sources);
  for (const int threads : {2, 3, 8}) {
    set_threads(threads);
    EXPECT_EQ(run_graph(device, network.graph, network.sources), one) << threads;
  }
  set_threads(0);
}

}  // namespace
}  // namespace convoy::testing
