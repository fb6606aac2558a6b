// The optimizer's operations on gradients of 16 bits: what they hold is all that counts.
#include "graph/ops/update.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cpu/cpu_device.h"
#include "support/graph_runner.h"

namespace convoy {
namespace {

using testing::from_bytes;
using testing::random_values;
using testing::run_graph;
using testing::Tensors;
using testing::to_bytes;

// Random numbers that `dtype` can hold.
std::vector<double> values_in(DType dtype, std::int64_t count, std::uint64_t stream) {
  return from_bytes(dtype, to_bytes(dtype, random_values(count, stream)));
}

constexpr DType kNarrow[] = {DType::kBF16, DType::kF16};

TEST(NarrowGradients, SquaresAreThoseOfTheSameNumbersInF32) {
  const std::vector<std::int64_t> sizes{70001, 5, 4096, 300};
  for (const DType narrow : kNarrow) {
    std::vector<SquareSums::Part> parts;
    std::int64_t all = 0;
    Graph mixed, wide;
    Tensors sources;
    std::vector<ValueId> mixed_inputs, wide_inputs;
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      parts.push_back({all, norm_block(sizes[t])});
      all += (sizes[t] + norm_block(sizes[t]) - 1) / norm_block(sizes[t]);
      const std::string name = "g" + std::to_string(t);
      sources[name] = values_in(narrow, sizes[t], t);
      mixed_inputs.push_back(mixed.add_source(Role::kGradient, name, {t % 2 == 0 ? narrow : DType::kF32, {sizes[t]}}));
      wide_inputs.push_back(wide.add_source(Role::kGradient, name, {DType::kF32, {sizes[t]}}));
    }
    sources["g0"][17] = sources["g2"][9] = INFINITY;
    for (auto& [name, values] : sources) sources["grad." + name] = values;
    mixed.outputs = mixed.add_op(SquareSums{parts, all}, mixed_inputs);
    wide.outputs = wide.add_op(SquareSums{parts, all}, wide_inputs);
    CpuDevice device;
    const std::vector<double> got = run_graph(device, mixed, sources).at("out0");
    EXPECT_EQ(got, run_graph(device, wide, sources).at("out0")) << name_of(narrow);
    EXPECT_EQ(got.back(), 2);
  }
}

TEST(NarrowGradients, ASumIsRoundedOnce) {
  const std::int64_t n = 40001;
  for (const DType narrow : kNarrow) {
    Graph graph;
    Tensors sources{{"x", values_in(narrow, n, 1)}, {"y", values_in(narrow, n, 2)}};
    graph.outputs = graph.add_op(AccumulateGradients{}, {graph.add_source(Role::kBatch, "x", {narrow, {n}}),
                                                         graph.add_source(Role::kBatch, "y", {narrow, {n}})});
    std::vector<double> expected;
    for (std::size_t i = 0; i < sources["x"].size(); ++i) expected.push_back(sources["x"][i] + sources["y"][i]);
    CpuDevice device;
    EXPECT_EQ(run_graph(device, graph, sources).at("out0"), from_bytes(narrow, to_bytes(narrow, expected)))
        << name_of(narrow);
  }
}

struct Update {
  OptimizerSettings settings;
  bool master;
  DType weight, gradient;
};

// Two tensors, the first with a gradient of the given type, the second with one of float32.
Tensors update(const Update& what) {
  Graph graph;
  Tensors sources{{"scalars", {1e-2, 3, 0.5, 0}}, {"norm", {2, 0, 0.7, 0}}};
  std::vector<ValueId> inputs{graph.add_source(Role::kBatch, "scalars", {DType::kF64, {kUpdateScalars}}),
                              graph.add_source(Role::kBatch, "norm", {DType::kF64, {kNormStatistics}})};
  const auto add = [&](const std::string& name, DType dtype, DType held, std::int64_t n, std::uint64_t stream) {
    inputs.push_back(graph.add_source(Role::kBatch, name, {dtype, {n}}));
    sources[name] = values_in(held, n, stream);
  };
  const std::int64_t sizes[] = {33000, 1001};
  for (std::uint64_t t = 0; t < 2; ++t) {
    const std::int64_t n = sizes[t];
    const auto name = [&](const char* of) { return of + std::to_string(t); };
    add(name("w"), what.weight, what.weight, n, 10 + t);
    // The same numbers whatever the type.
    add(name("g"), t == 0 ? what.gradient : DType::kF32, what.weight, n, 20 + t);
    if (what.master) add(name("p"), DType::kF32, DType::kF32, n, 30 + t);
    for (int m = 0; m < what.settings.moments(); ++m) {
      const std::string moment = name(m == 0 ? "m" : "v");
      add(moment, what.settings.moment_dtype, what.settings.moment_dtype, n,
          40 + 10 * static_cast<std::uint64_t>(m) + t);
      for (double& v : sources[moment]) v = std::abs(v);
    }
  }
  graph.outputs =
      graph.add_op(OptimizerStep{what.settings, what.master, {0.1F, 0.0F}, {false, false}, {{3, 64}, {4, 0}}}, inputs);
  CpuDevice device;
  return run_graph(device, graph, sources);
}

TEST(NarrowGradients, AnUpdateIsThatOfTheSameNumbersInF32) {
  for (const auto kind : {OptimizerKind::kAdamW, OptimizerKind::kAdam, OptimizerKind::kSgd, OptimizerKind::kLion,
                          OptimizerKind::kAdagrad, OptimizerKind::kOpenAiAdam}) {
    for (const DType dtype : kNarrow) {
      for (const bool master : {true, false}) {
        if (!master && dtype == DType::kF16) continue;  // the CPU device has no such update
        for (const DType moments : {DType::kF32, DType::kBF16}) {
          Update what;
          what.settings.kind = kind;
          what.settings.momentum = kind == OptimizerKind::kSgd ? 0.9 : 0;
          what.settings.moment_dtype = moments;
          what.settings.seed = 5;
          what.master = master;
          what.weight = dtype;
          what.gradient = DType::kF32;
          const Tensors wide = update(what);
          what.gradient = dtype;
          EXPECT_EQ(update(what), wide) << name_of(kind) << " " << name_of(dtype) << " master " << master;
        }
      }
    }
  }
}

}  // namespace
}  // namespace convoy
