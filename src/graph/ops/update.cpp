#include "graph/ops/update.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "graph/graph.h"

namespace convoy {

std::int64_t norm_block(std::int64_t numel) {
  // About 256 blocks to a tensor, so that small ones spread over ranks too and large ones need few sums.
  constexpr std::int64_t kLeast = 64, kMost = 65536;
  const auto even = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(numel / 256 + 1)));
  return std::clamp(even, kLeast, kMost);
}

std::vector<TensorSpec> SquareSums::infer(Specs in) const {
  check(in.size() == parts.size(), "square_sums: inputs do not match its parts");
  return {{DType::kF64, {blocks + 1}}};
}

std::string NormOfSums::attributes() const {
  return max_norm > 0 ? fmt::format("max_norm={}", max_norm) : "";
}

std::vector<TensorSpec> NormOfSums::infer(Specs in) const {
  check(in.size() == 2 && in[1]->numel() == kUpdateScalars, "norm_of_sums takes block sums and the update's scalars");
  return {{DType::kF64, {kNormStatistics}}};
}

std::string_view name_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kLion:
      return "lion";
    case OptimizerKind::kAdagrad:
      return "adagrad";
    case OptimizerKind::kOpenAiAdam:
      return "openai_adam";
  }
  return "?";
}

int moment_count(OptimizerKind kind, double momentum) {
  switch (kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam:
    case OptimizerKind::kOpenAiAdam:
      return 2;
    case OptimizerKind::kSgd:
      return momentum != 0 ? 1 : 0;
    case OptimizerKind::kLion:
    case OptimizerKind::kAdagrad:
      return 1;
  }
  return 0;
}

std::string OptimizerStep::attributes() const {
  return fmt::format("{} tensors={}{}", name_of(settings.kind), weight_decays.size(), master ? " master" : "");
}

std::vector<TensorSpec> OptimizerStep::infer(Specs in) const {
  const auto group = static_cast<std::size_t>(inputs_per_weight());
  check(in.size() == 2 + group * weight_decays.size(), "optimizer_step: inputs do not match the number of weights");
  std::vector<TensorSpec> out;
  for (std::size_t w = 0; w < weight_decays.size(); ++w) {
    const Specs part = in.subspan(2 + w * group, group);
    out.push_back(*part[0]);
    for (std::size_t i = 2; i < group; ++i) {
      check(part[i]->shape == part[0]->shape, "optimizer_step: state does not fit its weight");
      out.push_back(*part[i]);
    }
  }
  return out;
}

std::vector<Alias> OptimizerStep::aliases() const {
  std::vector<Alias> all;
  const int group = inputs_per_weight();
  for (int w = 0; w < static_cast<int>(weight_decays.size()); ++w) {
    const int out = w * (group - 1);
    const int in = 2 + w * group;
    all.push_back({out, in, true});
    for (int i = 2; i < group; ++i) all.push_back({out + i - 1, in + i, true});
  }
  return all;
}

std::vector<TensorSpec> AccumulateGradients::infer(Specs in) const {
  return {*in[1]};
}

}  // namespace convoy
