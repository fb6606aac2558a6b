#include "support/graph_runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/random.h"
#include "graph/ops/linear_cross_entropy.h"
#include "passes/differentiate.h"
#include "runtime/executor.h"

namespace convoy::testing {
namespace {

template <typename T, typename F>
std::vector<std::byte> encode(const std::vector<double>& values, F convert) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T element = convert(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
  }
  return bytes;
}

template <typename T, typename F>
std::vector<double> decode(std::span<const std::byte> bytes, F convert) {
  std::vector<double> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(convert(element));
  }
  return values;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

std::vector<std::byte> to_bytes(DType dtype, const std::vector<double>& values) {
  switch (dtype) {
    case DType::kF32:
      return encode<float>(values, [](double v) { return static_cast<float>(v); });
    case DType::kBF16:
      return encode<BF16>(values, [](double v) { return to_bf16(static_cast<float>(v)); });
    case DType::kF16:
      return encode<F16>(values, [](double v) { return to_f16(static_cast<float>(v)); });
    case DType::kF64:
      return encode<double>(values, [](double v) { return v; });
    case DType::kI32:
      return encode<std::int32_t>(values, [](double v) { return static_cast<std::int32_t>(v); });
    case DType::kI64:
      return encode<std::int64_t>(values, [](double v) { return static_cast<std::int64_t>(v); });
    case DType::kU8:
      return encode<std::uint8_t>(values, [](double v) { return static_cast<std::uint8_t>(v); });
    case DType::kF8E4M3:
      return encode<F8E4M3>(values, [](double v) { return to_f8e4m3(static_cast<float>(v)); });
    case DType::kF8E5M2:
      return encode<F8E5M2>(values, [](double v) { return to_f8e5m2(static_cast<float>(v)); });
  }
  return {};
}

std::vector<double> from_bytes(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::kF32:
      return decode<float>(bytes, [](float v) { return v; });
    case DType::kBF16:
      return decode<BF16>(bytes, [](BF16 v) { return to_float(v); });
    case DType::kF16:
      return decode<F16>(bytes, [](F16 v) { return to_float(v); });
    case DType::kF64:
      return decode<double>(bytes, [](double v) { return v; });
    case DType::kI32:
      return decode<std::int32_t>(bytes, [](std::int32_t v) { return v; });
    case DType::kI64:
      return decode<std::int64_t>(bytes, [](std::int64_t v) { return v; });
    case DType::kU8:
      return decode<std::uint8_t>(bytes, [](std::uint8_t v) { return v; });
    case DType::kF8E4M3:
      return decode<F8E4M3>(bytes, [](F8E4M3 v) { return to_float(v); });
    case DType::kF8E5M2:
      return decode<F8E5M2>(bytes, [](F8E5M2 v) { return to_float(v); });
  }
  return {};
}

Tensors run_graph(Device& device, const Graph& graph, const Tensors& sources) {
  Layout layout;
  for (std::size_t id = 0; id < graph.value_count(); ++id) {
    const Value& value = graph.value(static_cast<ValueId>(id));
    if (value.role != Role::kActivation) layout.add(value.role, value.name, value.spec);
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) names.push_back("out" + std::to_string(i));
  const Program program = compile(graph, layout, device, "test", names);
  ArenaSizes sizes;
  for (int role = 0; role < kRoleCount; ++role)
    sizes.bytes[static_cast<std::size_t>(role)] = layout.bytes(static_cast<Role>(role));
  sizes.bytes[static_cast<std::size_t>(Role::kActivation)] = program.activation_bytes;
  sizes.workspace = program.workspace_bytes;
  const Arenas arenas(device, sizes);
  for (std::size_t id = 0; id < graph.value_count(); ++id) {
    const Value& value = graph.value(static_cast<ValueId>(id));
    if (value.producer >= 0 || value.role == Role::kActivation) continue;
    const auto given = sources.find(value.role == Role::kGradient ? "grad." + value.name : value.name);
    if (given == sources.end()) continue;
    EXPECT_EQ(static_cast<std::int64_t>(given->second.size()), value.spec.numel()) << value.name;
    device.copy_in(arenas.base(value.role) + layout.find(value.role, value.name).offset,
                   to_bytes(value.spec.dtype, given->second));
  }
  Executor executor(device, program, arenas);
  executor.run();
  Tensors results;
  const auto fetch = [&](const std::string& name, Role role, std::size_t offset, const TensorSpec& spec) {
    std::vector<std::byte> bytes(spec.bytes());
    device.copy_out(bytes, arenas.base(role) + offset);
    results[name] = from_bytes(spec.dtype, bytes);
  };
  for (const auto& [name, ref] : program.outputs) fetch(name, ref.arena, ref.offset, ref.spec);
  for (ValueId id : graph.outputs) {
    const Value& value = graph.value(id);
    if (value.role == Role::kActivation) continue;
    const std::string prefix = value.role == Role::kGradient ? "grad." : "";
    fetch(prefix + value.name, value.role, layout.find(value.role, value.name).offset, value.spec);
  }
  return results;
}

std::vector<double> random_values(std::int64_t count, std::uint64_t stream) {
  RandomStream random(1234, stream);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = 2.0 * static_cast<double>(random.uniform()) - 1.0;
  return values;
}

void check_gradients(Device& device, const GradientCase& test) {
  Graph forward;
  Tensors sources;
  const ValueId output = test.build(forward, sources);
  forward.outputs = {output};
  std::vector<double> weights_of_output = random_values(forward.spec(output).numel(), 99);
  const auto objective = [&](const Tensors& at) {
    return dot(run_graph(device, forward, at).at("out0"), weights_of_output);
  };

  for (const bool accumulate : {false, true}) {
    Graph graph = forward;
    const ValueId seed = graph.add_source(Role::kBatch, "seed", graph.spec(output));
    DifferentiateOptions options;
    options.seeds = {{output, seed}};
    options.accumulate = accumulate;
    for (const std::string& name : test.wanted) {
      ValueId id = graph.find(Role::kWeight, name);
      if (id == kNoValue) id = graph.find(Role::kBatch, name);
      ASSERT_NE(id, kNoValue) << name;
      options.wanted.push_back(id);
    }
    differentiate(graph, options);
    Tensors at = sources;
    at["seed"] = weights_of_output;
    if (accumulate) {
      for (ValueId id : options.wanted)
        at["grad." + graph.value(id).name] = std::vector<double>(static_cast<std::size_t>(graph.spec(id).numel()), 3.0);
    }
    const Tensors gradients = run_graph(device, graph, at);
    for (std::size_t w = 0; w < test.wanted.size(); ++w) {
      std::vector<double> gradient = gradients.at("grad." + test.wanted[w]);
      if (accumulate) {
        for (double& each : gradient) each -= 3.0;
      }
      const double norm = std::sqrt(dot(gradient, gradient)) + 1e-3;
      const auto derivative = [&](const std::vector<double>& direction) {
        Tensors plus = sources, minus = sources;
        for (std::size_t i = 0; i < direction.size(); ++i) {
          plus[test.wanted[w]][i] += test.step * direction[i];
          minus[test.wanted[w]][i] -= test.step * direction[i];
        }
        return (objective(plus) - objective(minus)) / (2 * test.step);
      };
      for (std::uint64_t trial = 0; trial < 3; ++trial) {
        const std::vector<double> direction = random_values(static_cast<std::int64_t>(gradient.size()), 7 + trial);
        EXPECT_NEAR(derivative(direction), dot(gradient, direction),
                    test.tolerance * norm * std::sqrt(static_cast<double>(gradient.size())))
            << test.wanted[w] << (accumulate ? " accumulated" : "");
      }
      if (accumulate) continue;
      const std::size_t stride = std::max<std::size_t>(1, gradient.size() / 40);
      for (std::size_t i = 0; i < gradient.size(); i += stride) {
        std::vector<double> direction(gradient.size(), 0.0);
        direction[i] = 1;
        EXPECT_NEAR(derivative(direction), gradient[i], test.tolerance * norm) << test.wanted[w] << "[" << i << "]";
      }
    }
  }
}

}  // namespace convoy::testing
