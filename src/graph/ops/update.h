// The optimizer's operations. They run once per global step, on gradients summed over all micro-batches.
#pragma once

#include <vector>

#include "graph/op.h"

namespace convoy {

// Positions in GradientNorm's result.
enum NormStatistic : std::int64_t { kNorm = 0, kNonFinite = 1, kClipCoefficient = 2, kNormStatistics = 4 };

// (gradients …) → f64[4]: the global L2 norm (sums in float64 by fixed blocks and a fixed tree), whether any element is
// not finite, and the factor that clipping multiplies gradients with: min(1, max_norm / (norm + 1e-6)); 1 when max_norm
// is 0.
struct GradientNorm final : Op {
  explicit GradientNorm(double limit) : max_norm(limit) {}
  std::string_view name() const override { return "gradient_norm"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  double max_norm;
};

// y += x: the next level of the sum over micro-batches. (x, y) → y.
struct AccumulateGradients final : Op {
  std::string_view name() const override { return "accumulate_gradients"; }
  std::vector<TensorSpec> infer(Specs in) const override { return {*in[1]}; }
  std::vector<Alias> aliases() const override { return {{0, 1, true}}; }
};

enum class OptimizerKind : std::uint8_t { kAdamW, kAdam, kSgd, kLion, kAdagrad };
std::string_view name_of(OptimizerKind kind);
// How many float32 moments per weight it keeps (SGD: one with momentum, else none).
int moment_count(OptimizerKind kind, double momentum);

struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  int moments() const { return moment_count(kind, momentum); }
  friend bool operator==(const OptimizerSettings&, const OptimizerSettings&) = default;
};

// Positions in the scalars that the host sets before each update (f64[4]).
enum UpdateScalar : std::int64_t { kLearningRate = 0, kStepNumber = 1, kUpdateScalars = 4 };

// (scalars f64[4], norm statistics, then per weight: weight, gradient, [master], moments …) → per weight: weight,
// [master], moments …, each in place. Does nothing when a gradient is not finite. The step number counts executed
// steps, from 1.
struct OptimizerStep final : Op {
  OptimizerStep(OptimizerSettings s, bool with_master, std::vector<float> decays)
      : settings(s), master(with_master), weight_decays(std::move(decays)) {}
  std::string_view name() const override { return "optimizer_step"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override;
  int inputs_per_weight() const { return 2 + (master ? 1 : 0) + settings.moments(); }
  OptimizerSettings settings;
  bool master;
  std::vector<float> weight_decays;  // one per weight
};

}  // namespace convoy
