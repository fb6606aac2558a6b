// Operations on the CUDA device against the CPU device in float32, on random inputs.
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cpu/cpu_device.h"
#include "cuda/cuda_test.h"
#include "support/graph_runner.h"

namespace convoy::testing {

struct Input {
  std::string name;
  TensorSpec spec;  // f32 stands for the dtype under test
  std::vector<double> values;
  bool wide = false;  // stays f32
  Role role = Role::kBatch;
};

inline std::vector<double> whole_numbers(std::int64_t count, std::uint64_t below, std::uint64_t stream) {
  RandomStream random(77, stream);
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(random.below(below)));
  return values;
}

inline Input real(const std::string& name, Shape shape, std::uint64_t stream, double factor = 1) {
  Input input{name, {DType::kF32, shape}, random_values(shape.numel(), stream)};
  for (double& v : input.values) v *= factor;
  return input;
}
inline Input wide(Input input) {
  input.wide = true;
  return input;
}
inline Input ints(const std::string& name, std::int64_t count, std::uint64_t below, std::uint64_t stream) {
  return {name, {DType::kI32, {count}}, whole_numbers(count, below, stream)};
}
inline Input keys(std::int64_t count) {
  Input input{"keys", {DType::kI64, {count}}, {}};
  for (std::int64_t i = 0; i < count; ++i) input.values.push_back(static_cast<double>(1000003 * i + 7));
  return input;
}

class CudaOps : public CudaTest {
 protected:
  // Runs `op` on both devices; `absent` numbers inputs that are not given.
  void compare(const std::shared_ptr<const Op>& op, std::vector<Input> inputs, double factor = 1,
               const std::vector<std::size_t>& absent = {}, const std::set<std::string>& private_to_device = {}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(std::string(op->name()) + " " + op->attributes() + " " + std::string(name_of(dtype)));
      // Both devices see the values that the dtype can hold.
      for (Input& input : inputs) {
        if (input.spec.dtype == DType::kF32 && !input.wide)
          input.values = from_bytes(dtype, to_bytes(dtype, input.values));
      }
      const Tensors expected = run(cpu_, *op, op, inputs, DType::kF32, absent);
      const Tensors got = run(*device_, *op, op, inputs, dtype, absent);
      const double tolerance = factor * (dtype == DType::kF32 ? 2e-6 : (dtype == DType::kF16 ? 1.5e-3 : 1e-2));
      for (const auto& [name, values] : expected) {
        if (private_to_device.contains(name)) continue;
        ASSERT_EQ(values.size(), got.at(name).size());
        const double error = relative_error(got.at(name), values);
        EXPECT_TRUE(error <= tolerance) << name << ": " << error;
      }
    }
  }

  static Tensors run(Device& device, const Op&, const std::shared_ptr<const Op>& op, const std::vector<Input>& inputs,
                     DType dtype, const std::vector<std::size_t>& absent) {
    Graph graph;
    Tensors sources;
    std::vector<ValueId> ids;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Input& input = inputs[i];
      if (std::find(absent.begin(), absent.end(), i) != absent.end()) {
        ids.push_back(kNoValue);
        continue;
      }
      TensorSpec spec = input.spec;
      if (spec.dtype == DType::kF32 && !input.wide) spec.dtype = dtype;
      ids.push_back(graph.add_source(input.role, input.name, spec));
      sources[input.name] = input.values;
    }
    graph.outputs = graph.add(op, ids);
    return run_graph(device, graph, sources);
  }

  CpuDevice cpu_;
};

template <typename O>
std::shared_ptr<const Op> made(O op) {
  return std::make_shared<const O>(std::move(op));
}

}  // namespace convoy::testing
