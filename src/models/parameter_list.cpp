#include "models/parameter_list.h"

#include "graph/ops/frames.h"

namespace convoy {

std::size_t ParameterList::add(Parameter parameter, const Shape& file_shape) {
  files_.push_back({parameter.name, file_shape, parameters_.size(), 0});
  parameters_.push_back(std::move(parameter));
  return parameters_.size() - 1;
}

std::size_t ParameterList::add(Parameter parameter) {
  const Shape shape = parameter.shape;
  return add(std::move(parameter), shape);
}

std::size_t ParameterList::layer_norm(const std::string& name, std::int64_t width) {
  const std::size_t first = add({name + ".weight", {width}, 0, 1, -1, false});
  add({name + ".bias", {width}, 0, 0, -1, false});
  return first;
}

std::size_t ParameterList::linear(const std::string& name, std::int64_t in, std::int64_t out, double std) {
  const std::size_t first = add({name + ".weight", {out, in}, std, 0, -1, true});
  add({name + ".bias", {out}, 0, 0, -1, false});
  return first;
}

std::size_t ParameterList::convolution(const std::string& name, std::int64_t in, std::int64_t out, double std) {
  const std::size_t first =
      add({name + ".weight", {out, in * kConvolutionTaps}, std, 0, -1, true}, {out, in, kConvolutionTaps});
  add({name + ".bias", {out}, 0, 0, -1, false});
  return first;
}

std::size_t ParameterList::projections(const std::string& prefix, const std::vector<std::string>& names,
                                       std::int64_t in, std::int64_t out, double std) {
  const std::size_t first = parameters_.size();
  std::string fused;
  std::int64_t rows = 0, biases = 0;
  for (const std::string& name : names) {
    files_.push_back({prefix + name + "_proj.weight", {out, in}, first, rows});
    rows += out;
    fused += name;
  }
  for (const std::string& name : names) {
    if (name == "k") continue;
    files_.push_back({prefix + name + "_proj.bias", {out}, first + 1, biases});
    biases += out;
  }
  parameters_.push_back({prefix + fused + "_proj.weight", {rows, in}, std, 0, -1, true});
  parameters_.push_back({prefix + fused + "_proj.bias", {biases}, 0, 0, -1, false});
  return first;
}

void ParameterList::freeze_from(std::size_t first) {
  for (std::size_t p = first; p < parameters_.size(); ++p) parameters_[p].trainable = false;
}

}  // namespace convoy
