// Declaring a model's tensors: the parameter as it is computed with, and the runs of its rows that files hold.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"

namespace convoy {

class ParameterList {
 public:
  ParameterList(std::vector<Parameter>& parameters, std::vector<FileTensor>& files)
      : parameters_(parameters), files_(files) {}

  // One tensor, the same in the file but for its shape. Returns the parameter's index.
  std::size_t add(Parameter parameter, const Shape& file_shape);
  std::size_t add(Parameter parameter);
  // LayerNorm: NAME.weight and NAME.bias.
  std::size_t layer_norm(const std::string& name, std::int64_t width);
  // NAME.weight [out, in] and NAME.bias.
  std::size_t linear(const std::string& name, std::int64_t in, std::int64_t out, double std);
  // NAME.weight, in files [out, in, taps], here [out, in·taps]; and NAME.bias.
  std::size_t convolution(const std::string& name, std::int64_t in, std::int64_t out, double std);
  // Projections of width `out` each, fused in the order given, of which k_proj has no bias: PREFIX{q,k,v}_proj.
  // One parameter of the weights and one of the biases that there are.
  std::size_t projections(const std::string& prefix, const std::vector<std::string>& names, std::int64_t in,
                          std::int64_t out, double std);
  // The parameters added since there were `first` are not trained.
  void freeze_from(std::size_t first);

 private:
  std::vector<Parameter>& parameters_;
  std::vector<FileTensor>& files_;
};

}  // namespace convoy
