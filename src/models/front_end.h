// What a model of several senses puts before the first block of a decoder of text.
#pragma once

#include "models/graph_inputs.h"
#include "models/parameter_list.h"

namespace convoy {

class FrontEnd {
 public:
  virtual ~FrontEnd() = default;
  // Adds its tensors to the model's.
  virtual void declare(ParameterList& list) = 0;
  // From the embedded tokens to what the first block reads. Numbers its own blocks from `first_block`.
  virtual ValueId embed(GraphInputs& in, ValueId embedded, int first_block) const = 0;
  virtual int blocks() const = 0;
  virtual AudioInput audio() const = 0;
  virtual std::vector<BatchConstant> constants(const GraphOptions& options) const = 0;
  virtual void mark_heard(const GraphOptions& options, std::span<const std::int32_t> lengths,
                          HeardInputs& inputs) const = 0;
  // See Model.
  virtual std::string renamed(const std::string& tensor) const = 0;
};

}  // namespace convoy
