// 8-bit factors and their products on a GPU, against the CPU device: the codes are the same to the bit.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "cuda/op_comparison.h"
#include "graph/ops/fp8.h"

namespace convoy {
namespace {

using testing::from_bytes;
using testing::random_values;
using testing::relative_error;
using testing::run_graph;
using testing::Tensors;
using testing::to_bytes;
using Keep = Fp8Quantize::Keep;
using Kind = Fp8Product::Kind;

struct CudaFp8 : testing::CudaTest {
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    cudaDeviceProp card{};
    ASSERT_EQ(cudaGetDeviceProperties(&card, 0), cudaSuccess);
    has_fp8 = 10 * card.major + card.minor >= 89;
  }
  bool has_fp8 = false;
  CpuDevice cpu;
};

std::vector<double> matrix(std::int64_t count, std::uint64_t stream, double factor) {
  std::vector<double> values = random_values(count, stream);
  for (double& v : values) v *= factor;
  return from_bytes(DType::kBF16, to_bytes(DType::kBF16, values));
}

struct Factor {
  ValueId codes, scale;
};
Factor add_factor(Graph& graph, const char* name, const Shape& shape, DType type, Keep keep = Keep::kRows) {
  const ValueId x = graph.add_source(Role::kBatch, name, {DType::kBF16, shape});
  const ValueId scale = graph.add_op(Fp8Scale{type}, {x})[0];
  return {graph.add_op(Fp8Quantize{type, keep}, {x, scale})[0], scale};
}

TEST_F(CudaFp8, ScalesAndCodesAreTheCpusToTheBit) {
  for (const Shape& shape : {Shape{16, 16}, Shape{128, 64}, Shape{144, 208}, Shape{1008, 4112}, Shape{4096, 2048}}) {
    for (const DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
      for (const Keep keep : {Keep::kRows, Keep::kTransposed, Keep::kBoth}) {
        for (const double factor : {1.0, 3e-7, 2e12, 1e-38}) {
          SCOPED_TRACE(fmt::format("{} {} {} {}", shape.str(), name_of(type), static_cast<int>(keep), factor));
          Graph graph;
          const ValueId x = graph.add_source(Role::kBatch, "x", {DType::kBF16, shape});
          const ValueId scale = graph.add_op(Fp8Scale{type}, {x})[0];
          graph.outputs = graph.add_op(Fp8Quantize{type, keep}, {x, scale});
          graph.outputs.push_back(scale);
          std::vector<double> values = matrix(shape.numel(), 7, factor);
          for (std::size_t i = 0; i < values.size(); i += 7) values[i] /= 1000;  // subnormal codes too
          const Tensors sources = {{"x", values}};
          EXPECT_EQ(run_graph(*device_, graph, sources), run_graph(cpu, graph, sources));
        }
      }
    }
  }
}

TEST_F(CudaFp8, WhatIsNotFiniteMakesTheScaleNaN) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    Graph graph;
    const ValueId x = graph.add_source(Role::kBatch, "x", {DType::kBF16, {1024, 512}});
    graph.outputs = graph.add_op(Fp8Scale{DType::kF8E5M2}, {x});
    std::vector<double> values = matrix(1024 * 512, 8, 1);
    values[300001] = bad;
    EXPECT_TRUE(std::isnan(run_graph(*device_, graph, {{"x", values}}).at("out0")[0])) << bad;
  }
}

// The factors' products are exact in f32: the devices differ by the order of sums, by how many bits the tensor cores
// keep of them (about 14 on Hopper, over 128 terms at a time, forward over all), and by one rounding of the result.
TEST_F(CudaFp8, ProductsComeNearTheCpus) {
  if (!has_fp8) GTEST_SKIP() << "no FP8 products on this GPU";
  struct Size {
    std::int64_t m, n, k;
  };
  for (const Size& size : {Size{16, 16, 16}, Size{48, 80, 112}, Size{512, 896, 4864}, Size{1024, 1152, 512}}) {
    for (const Kind kind : {Kind::kForward, Kind::kInputGrad, Kind::kWeightGrad}) {
      for (const bool gradient_second : {false, true}) {  // the weight gradient of a transposed weight
        for (const bool more : {false, true}) {
          if (gradient_second && kind != Kind::kWeightGrad) continue;
          SCOPED_TRACE(fmt::format("{}x{}x{} kind {} {} {}", size.m, size.n, size.k, static_cast<int>(kind),
                                   gradient_second, more));
          const DType gradient = kind == Kind::kForward ? DType::kF8E4M3 : DType::kF8E5M2;
          Graph graph;
          const Factor a = add_factor(graph, "a", {size.m, size.k}, gradient_second ? DType::kF8E4M3 : gradient);
          const Factor b = add_factor(graph, "b", {size.n, size.k}, gradient_second ? gradient : DType::kF8E4M3);
          Tensors sources = {{"a", matrix(size.m * size.k, 11, 1e-4)}, {"b", matrix(size.n * size.k, 12, 0.3)}};
          std::vector<ValueId> inputs = {a.codes, b.codes, a.scale, b.scale, kNoValue, kNoValue};
          const bool wide = kind == Kind::kWeightGrad;
          if (more && kind == Kind::kForward) {
            inputs[4] = graph.add_source(Role::kBatch, "bias", {DType::kBF16, {size.n}});
            sources["bias"] = matrix(size.n, 13, 1e-3);
          } else if (more) {
            inputs[5] = graph.add_source(wide ? Role::kGradient : Role::kBatch, "sum",
                                         {wide ? DType::kF32 : DType::kBF16, {size.m, size.n}});
            sources[wide ? "grad.sum" : "sum"] = matrix(size.m * size.n, 14, 1e-3);
          }
          graph.outputs = graph.add_op(Fp8Product(kind), inputs);
          const Tensors expected = run_graph(cpu, graph, sources), got = run_graph(*device_, graph, sources);
          for (const auto& [name, values] : expected) {
            const double error = relative_error(got.at(name), values);
            EXPECT_LE(error, wide ? 2e-3 : (kind == Kind::kForward ? 2e-2 : 6e-3)) << name;
          }
          EXPECT_EQ(run_graph(*device_, graph, sources), got);  // the same bits again
        }
      }
    }
  }
}

TEST_F(CudaFp8, AnActivationKeepsWhatItsGradientNeeds) {
  if (!has_fp8) GTEST_SKIP() << "no FP8 products on this GPU";
  for (const Activation activation : {Activation::kGeluErf, Activation::kGeluTanh}) {
    Graph graph;
    const Factor a = add_factor(graph, "a", {64, 128}, DType::kF8E4M3);
    const Factor b = add_factor(graph, "b", {256, 128}, DType::kF8E4M3);
    const ValueId bias = graph.add_source(Role::kBatch, "bias", {DType::kBF16, {256}});
    graph.outputs =
        graph.add_op(Fp8Product(Kind::kForward, activation, true), {a.codes, b.codes, a.scale, b.scale, bias});
    const Tensors sources = {
        {"a", matrix(64 * 128, 21, 1)}, {"b", matrix(256 * 128, 22, 0.2)}, {"bias", matrix(256, 23, 1)}};
    const Tensors expected = run_graph(cpu, graph, sources), got = run_graph(*device_, graph, sources);
    for (const char* name : {"out0", "out1"}) EXPECT_LE(relative_error(got.at(name), expected.at(name)), 1e-2) << name;
  }
}

}  // namespace
}  // namespace convoy
