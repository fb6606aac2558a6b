#include "plan/model_flops.h"

#include "graph/ops/attention.h"

namespace convoy {
namespace {

TensorSpec with_rows(const TensorSpec& spec, std::int64_t from, std::int64_t to) {
  if (spec.shape.rank() == 0 || spec.shape[0] != from) return spec;
  std::vector<std::int64_t> dims(spec.shape.dims().begin(), spec.shape.dims().end());
  dims[0] = to;
  return {spec.dtype, Shape(dims)};
}

// Attention over one row of `seq` tokens after the other: it is asked for its cost with `seq` in the place of the
// tokens.
double flops_by_row(const Instruction& instruction, std::int64_t tokens, std::int64_t seq) {
  std::vector<TensorSpec> specs;
  for (const BufferRef& operand : instruction.inputs) specs.push_back(with_rows(operand.spec, tokens, seq));
  std::vector<const TensorSpec*> in;
  for (std::size_t i = 0; i < specs.size(); ++i) in.push_back(instruction.inputs[i].present ? &specs[i] : nullptr);
  return instruction.op->cost(in, {}).flops * static_cast<double>(tokens) / static_cast<double>(seq);
}

}  // namespace

double model_flops(const Program& micro, std::int64_t seq) {
  double flops = 0;
  for (const Instruction& instruction : micro.instructions) {
    if (instruction.phase == Phase::kRecompute) continue;
    // The packed query, key and value rows: one a token.
    const Op* op = instruction.op.get();
    std::int64_t tokens = 0;
    if (dynamic_cast<const Attention*>(op) != nullptr) tokens = instruction.inputs[0].spec.shape[0];
    if (dynamic_cast<const AttentionGrad*>(op) != nullptr) tokens = instruction.inputs[1].spec.shape[0];
    flops += tokens > seq ? flops_by_row(instruction, tokens, seq) : instruction.cost.flops;
  }
  return flops;
}

}  // namespace convoy
