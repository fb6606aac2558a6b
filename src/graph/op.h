// What every operation of the graph tells: its shape rule, backward rule, cost and buffer sharing. One file per kind of
// operation under ops/. The kernels are the devices' (see runtime/device.h); nothing here touches one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/shape.h"

namespace convoy {

using ValueId = std::int32_t;
using NodeId = std::int32_t;
inline constexpr ValueId kNoValue = -1;

struct Cost {
  double flops = 0;  // multiply and add count as two
  double bytes = 0;  // read and written once each, the least that memory must move
};

// Output `output` lies in the buffer of input `input`. A must-alias updates a persistent buffer in place; a may-alias
// is taken by the placement when that input is not needed afterwards.
struct Alias {
  int output;
  int input;
  bool must;
};

// Specifications of a node's inputs; an absent optional input is null.
using Specs = std::span<const TensorSpec* const>;

class BackwardContext;

class Op {
 public:
  virtual ~Op() = default;
  // The word that prints and errors use ("linear").
  virtual std::string_view name() const = 0;
  // The attributes as they print ("causal heads=8/2"), or "".
  virtual std::string attributes() const { return {}; }
  // Shape rule: the outputs' specifications. Throws an internal error on inputs that do not fit.
  virtual std::vector<TensorSpec> infer(Specs inputs) const = 0;
  // Adds to the graph the nodes that compute the inputs' gradients from the outputs'. The default throws: not
  // differentiable.
  virtual void backward(BackwardContext& context) const;
  virtual Cost cost(Specs inputs, std::span<const TensorSpec> outputs) const;
  virtual std::vector<Alias> aliases() const { return {}; }
  // Cheap operations are worth computing twice to save the memory of their result (selective recompute).
  virtual bool cheap() const { return false; }
};

// Sum of the bytes of all inputs and outputs: the memory traffic of an operation that touches each once.
double traffic(Specs inputs, std::span<const TensorSpec> outputs);

// The dtype of statistics, losses and, unless they are narrowed (passes/differentiate.h), weight gradients beside
// tensors of `dtype`: f64 for f64, else f32.
inline DType accumulation_dtype(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

}  // namespace convoy
