// The heads of classification and choice on the CUDA device against the CPU device in float32.
#include <cmath>

#include "base/random.h"
#include "cpu/cpu_device.h"
#include "cuda/cuda_test.h"
#include "graph/ops/cross_entropy.h"
#include "graph/ops/select_rows.h"
#include "graph/ops/update.h"
#include "support/graph_runner.h"

namespace convoy {
namespace {

using testing::relative_error;
using testing::Tensors;

class CudaClasses : public testing::CudaTest {
 protected:
  // Builds the graph for a dtype and compares the two devices on values that the dtype holds. Of the sources those of
  // `rounded` are in the dtype.
  template <typename Build>
  void compare(const Build& build, Tensors sources, const std::vector<std::string>& rounded, double factor = 1) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(std::string(name_of(dtype)));
      for (const std::string& name : rounded)
        sources[name] = testing::from_bytes(dtype, testing::to_bytes(dtype, sources[name]));
      Graph wide, narrow;
      build(wide, DType::kF32);
      build(narrow, dtype);
      const Tensors expected = testing::run_graph(cpu_, wide, sources);
      const Tensors got = testing::run_graph(*device_, narrow, sources);
      const double tolerance = factor * (dtype == DType::kF32 ? 2e-6 : (dtype == DType::kF16 ? 1.5e-3 : 1e-2));
      for (const auto& [name, values] : expected) {
        const double error = relative_error(got.at(name), values);
        EXPECT_TRUE(error <= tolerance) << name << ": " << error;
      }
    }
  }
  CpuDevice cpu_;
};

TEST_F(CudaClasses, SelectedRows) {
  const std::vector<double> rows = {7, 0, 299, 7, 130, 7};  // one of them three times
  const auto count = static_cast<std::int64_t>(rows.size());
  for (const std::int64_t width : {1, 33, 64, 768}) {
    const std::int64_t tokens = 300;
    Tensors sources{{"x", testing::random_values(tokens * width, 1)},
                    {"dy", testing::random_values(count * width, 2)},
                    {"sum", testing::random_values(tokens * width, 3)},
                    {"rows", rows}};
    for (const bool sum : {false, true}) {
      compare(
          [&](Graph& g, DType dtype) {
            const ValueId x = g.add_source(Role::kBatch, "x", {dtype, {tokens, width}});
            const ValueId dy = g.add_source(Role::kBatch, "dy", {dtype, {count, width}});
            const ValueId before = g.add_source(Role::kBatch, "sum", {dtype, {tokens, width}});
            const ValueId at = g.add_source(Role::kBatch, "rows", {DType::kI32, {count}});
            g.outputs = {g.add_op(SelectRows{}, {x, at})[0],
                         g.add_op(SelectRowsGrad{tokens}, {dy, at, sum ? before : kNoValue})[0]};
          },
          sources, {"x", "dy", "sum"});
    }
  }
}

TEST_F(CudaClasses, LossesOfFewClasses) {
  for (const std::int64_t classes : {1, 2, 3, 31, 33, 100}) {
    for (const std::int64_t items : {1, 5, 70}) {
      RandomStream random(5, static_cast<std::uint64_t>(classes * 100 + items));
      Tensors sources{{"scores", testing::random_values(items * classes, 4)}, {"scale", {0.37}}};
      for (double& v : sources["scores"]) v *= 4;
      for (std::int64_t i = 0; i < items; ++i)
        sources["labels"].push_back(
            i % 7 == 3 ? -1.0 : static_cast<double>(random.below(static_cast<std::uint64_t>(classes))));
      if (classes > 2) sources["scores"][1] = sources["scores"][2] = 9;  // equals: the first counts
      compare(
          [&](Graph& g, DType dtype) {
            const ValueId scores = g.add_source(Role::kBatch, "scores", {dtype, {items * classes, 1}});
            const ValueId labels = g.add_source(Role::kBatch, "labels", {DType::kI32, {items}});
            const ValueId scale = g.add_source(Role::kBatch, "scale", {DType::kF32, {1}});
            g.outputs = {g.add_op(CrossEntropy{classes}, {scores, labels})[0],
                         g.add_op(CrossEntropyGrad{classes}, {scores, labels, scale})[0]};
          },
          sources, {"scores"});
    }
  }
}

TEST_F(CudaClasses, NormsWithoutAnEpsilonAndOpenAisAdam) {
  const std::int64_t n = 1003;
  Tensors sources{{"sums", {9, 16, 0}}, {"scalars", {1e-2, 3, 0.5, 0}}, {"norm", {2, 0, 0.7, 0}}};
  for (const char* name : {"w", "g", "p", "m", "v"})
    sources[name] = testing::random_values(n, static_cast<std::uint64_t>(name[0]));
  for (double& v : sources["v"]) v = std::abs(v);
  OptimizerSettings settings;
  settings.kind = OptimizerKind::kOpenAiAdam;
  compare(
      [&](Graph& g, DType dtype) {
        const ValueId sums = g.add_source(Role::kBatch, "sums", {DType::kF64, {3}});
        const ValueId scalars = g.add_source(Role::kBatch, "scalars", {DType::kF64, {kUpdateScalars}});
        const ValueId norm = g.add_source(Role::kBatch, "norm", {DType::kF64, {kNormStatistics}});
        std::vector<ValueId> inputs{scalars, norm, g.add_source(Role::kBatch, "w", {dtype, {n}})};
        for (const char* name : {"g", "p", "m", "v"})
          inputs.push_back(g.add_source(Role::kBatch, name, {DType::kF32, {n}}));
        g.outputs = g.add_op(OptimizerStep{settings, true, {0.1F}, {false}}, inputs);
        g.outputs.push_back(g.add_op(NormOfSums{{1, 1}, 1.0, 0.0}, {sums, scalars})[0]);
      },
      sources, {"w"}, 2);
}

}  // namespace
}  // namespace convoy
