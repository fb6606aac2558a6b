// The language-model head with its loss.
#include "cpu/cross_entropy.h"

#include "cpu/registry.h"
#include "graph/ops/linear_cross_entropy.h"

namespace convoy::cpu {
namespace {

constexpr std::int64_t kChunkRows = 512;  // unless the user says

CrossEntropySpec spec_of(const CrossEntropyShape& shape, const Request& q, bool backward) {
  CrossEntropySpec spec;
  spec.dtype = q.inputs[0]->dtype;
  spec.tokens = q.inputs[0]->shape[0];
  spec.dim = q.inputs[0]->shape[1];
  spec.vocab = q.inputs[1]->shape[0];
  spec.chunk_rows = shape.chunk_rows > 0 ? shape.chunk_rows : kChunkRows;
  spec.backward = backward;
  spec.accumulate_dw = backward && q.has(4);
  spec.count_correct = true;
  spec.label_smoothing = shape.label_smoothing;
  spec.z_loss = shape.z_loss;
  return spec;
}

CrossEntropySpec spec_of(const LinearCrossEntropyGrad& op, const Request& q) {
  CrossEntropySpec spec = spec_of(op.shape, q, true);
  spec.with_dx = op.dx;
  spec.with_dw = op.dweight;
  return spec;
}

template <typename W>
void write_statistics(std::byte* to, double loss, std::int64_t targets, std::int64_t correct) {
  auto* statistics = reinterpret_cast<W*>(to);
  statistics[kLossSum] = static_cast<W>(loss);
  statistics[kTargetCount] = static_cast<W>(targets);
  statistics[kCorrectCount] = static_cast<W>(correct);
  statistics[3] = 0;
}

void run(const CrossEntropy& head, const KernelArguments& a) {
  const bool f64 = head.spec().dtype == DType::kF64;
  double loss = 0;
  std::int64_t targets = 0, correct = 0;
  float scale = 1;
  CrossEntropyArgs args;
  args.x = a.inputs[0];
  args.weight = a.inputs[1];
  args.targets = reinterpret_cast<const std::int32_t*>(a.inputs[2]);
  args.loss_sum = &loss;
  args.target_count = &targets;
  args.correct_count = &correct;
  args.workspace = a.workspace;
  if (head.spec().backward) {
    scale = f64 ? static_cast<float>(*reinterpret_cast<const double*>(a.inputs[3]))
                : *reinterpret_cast<const float*>(a.inputs[3]);
    args.grad_scale = &scale;
    args.dx = a.outputs[1];
    args.dweight = a.outputs[2];
  }
  head.run(args);
  (f64 ? write_statistics<double> : write_statistics<float>)(a.outputs[0], loss, targets, correct);
}

}  // namespace

void register_head(Registry& registry) {
  registry.add<LinearCrossEntropy>(
      [](const LinearCrossEntropy& op, const Request& q) {
        return [head = CrossEntropy(spec_of(op.shape, q, false))](const KernelArguments& a) { run(head, a); };
      },
      [](const LinearCrossEntropy& op, const Request& q) {
        return CrossEntropy(spec_of(op.shape, q, false)).workspace_bytes();
      });
  registry.add<LinearCrossEntropyGrad>(
      [](const LinearCrossEntropyGrad& op, const Request& q) {
        return [head = CrossEntropy(spec_of(op, q))](const KernelArguments& a) { run(head, a); };
      },
      [](const LinearCrossEntropyGrad& op, const Request& q) {
        return CrossEntropy(spec_of(op, q)).workspace_bytes();
      });
}

}  // namespace convoy::cpu
