// The optimizer's operations. They run once per global step, on gradients summed over all micro-batches.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "graph/op.h"

namespace convoy {

// Elements of a tensor whose squares are summed on their own before the tree of block sums: a function of the tensor's
// size alone, and where shards of it may be cut, so that the norm has the same bits however it is sharded.
std::int64_t norm_block(std::int64_t numel);

// (gradients or shards of gradients …) → f64[blocks + 1]: the sum of squares of each block of the whole model (0 for
// the blocks of other ranks), and last the number of elements that are not finite.
struct SquareSums final : Op {
  struct Part {
    std::int64_t first_block;  // of this input, among the blocks of all tensors
    std::int64_t block;        // elements
  };
  SquareSums(std::vector<Part> inputs, std::int64_t all_blocks) : parts(std::move(inputs)), blocks(all_blocks) {}
  std::string_view name() const override { return "square_sums"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Part> parts;
  std::int64_t blocks;
};

// Positions in NormOfSums' result.
enum NormStatistic : std::int64_t { kNorm = 0, kNonFinite = 1, kGradientFactor = 2, kNormStatistics = 4 };

// (block sums f64[blocks + 1], scalars f64[kUpdateScalars]) → f64[4]: the global L2 norm of the gradients times
// scalars[kUnscale] (a fixed tree over each tensor's blocks, then over the tensors), whether any element is not finite,
// and the factor that the optimizer multiplies gradients with: kUnscale · min(1, max_norm / (norm + epsilon)), without
// clipping where max_norm is 0. torch's clip_grad_norm_ has an epsilon of 1e-6, TensorFlow's clip_by_global_norm none.
struct NormOfSums final : Op {
  NormOfSums(std::vector<std::int64_t> blocks, double limit, double added = 1e-6)
      : tensor_blocks(std::move(blocks)), max_norm(limit), epsilon(added) {}
  std::string_view name() const override { return "norm_of_sums"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<std::int64_t> tensor_blocks;
  double max_norm;
  double epsilon;
};

// y += x: the next level of the sum over micro-batches. (x, y) → y.
struct AccumulateGradients final : Op {
  std::string_view name() const override { return "accumulate_gradients"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{0, 1, true}}; }
};

enum class OptimizerKind : std::uint8_t { kAdamW, kAdam, kSgd, kLion, kAdagrad, kOpenAiAdam };
std::string_view name_of(OptimizerKind kind);
// How many float32 moments per weight it keeps (SGD: one with momentum, else none).
int moment_count(OptimizerKind kind, double momentum);

struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  // Moments and, without a master copy, 16-bit weights are rounded up or down at random, in the mean to their value
  // (stochastic rounding: Gupta et al., "Deep Learning with Limited Numerical Precision", 2015), from random numbers of
  // (seed, tensor, element, step). float32 or bfloat16.
  DType moment_dtype = DType::kF32;
  std::uint64_t seed = 0;
  int moments() const { return moment_count(kind, momentum); }
  friend bool operator==(const OptimizerSettings&, const OptimizerSettings&) = default;
};

// Positions in the scalars that the host sets before each update (f64[4]).
// kUnscale: what gradients are multiplied with, 1 / loss scale.
enum UpdateScalar : std::int64_t { kLearningRate = 0, kStepNumber = 1, kUnscale = 2, kUpdateScalars = 4 };

// (scalars f64[4], norm statistics, then per weight: weight, gradient, [master], moments …) → per weight: weight,
// [master], moments …, each in place. Does nothing when a gradient is not finite. The step number counts executed
// steps, from 1. Of masked weights only elements whose gradient is not exactly zero change ("lazy" or sparse Adam).
struct OptimizerStep final : Op {
  // Which elements of which parameter an input is: for random numbers that do not depend on the sharding.
  struct Origin {
    std::uint32_t tensor = 0;
    std::int64_t first = 0;
  };
  OptimizerStep(OptimizerSettings s, bool with_master, std::vector<float> decays, std::vector<bool> masks = {},
                std::vector<Origin> of = {})
      : settings(s),
        master(with_master),
        weight_decays(std::move(decays)),
        masked(std::move(masks)),
        origins(std::move(of)) {
    masked.resize(weight_decays.size());
    origins.resize(weight_decays.size());
  }
  std::string_view name() const override { return "optimizer_step"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override;
  int inputs_per_weight() const { return 2 + (master ? 1 : 0) + settings.moments(); }
  OptimizerSettings settings;
  bool master;
  std::vector<float> weight_decays;  // one per weight
  std::vector<bool> masked;          // one per weight
  std::vector<Origin> origins;       // one per weight
};

}  // namespace convoy
