// Runs small graphs on the CPU device and checks their gradients against finite differences.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "program/program.h"
#include "runtime/device.h"

namespace convoy::testing {

// Values of sources and results by name, as doubles; converted to and from each tensor's dtype.
using Tensors = std::map<std::string, std::vector<double>>;

std::vector<std::byte> to_bytes(DType dtype, const std::vector<double>& values);
std::vector<double> from_bytes(DType dtype, std::span<const std::byte> bytes);

// Runs the graph. Sources take their values from `sources` by name; returns the graph's outputs: activations as "out0",
// "out1", …, gradients as "grad.NAME".
Tensors run_graph(Device& device, const Graph& graph, const Tensors& sources);

// Uniform random numbers in [-1, 1).
std::vector<double> random_values(std::int64_t count, std::uint64_t stream);

struct GradientCase {
  // Builds the graph from a seed-free description: adds sources to the graph, their values to `sources`, and returns
  // the output.
  std::function<ValueId(Graph&, Tensors&)> build;
  // Sources whose gradients are checked.
  std::vector<std::string> wanted;
  double step = 1e-5;
  double tolerance = 1e-6;  // of the directional derivative, relative to the gradient's norm
};

// Compares, for every wanted source, the gradient with central differences along random directions and, for up to 40
// elements, element by element; in float64, with objective Σ r·output for a random r. Also with accumulation into
// existing gradients.
void check_gradients(Device& device, const GradientCase& test);

}  // namespace convoy::testing
