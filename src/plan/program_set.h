// The programs of a training run and the memory that they take: what the executor runs and what `convoy plan` measures.
#pragma once

#include <optional>

#include "graph/ops/update.h"
#include "models/model.h"
#include "passes/recompute.h"
#include "passes/zero.h"
#include "runtime/arenas.h"

namespace convoy {

// One shape of micro-batches, of a run that has several.
struct BatchShape {
  std::int64_t rows = 1, seq = 1;
  std::int64_t audio_windows = 0, audio_frames = 0;
  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

struct TrainShape {
  std::int64_t rows = 1;          // sequences of a micro-batch
  std::int64_t seq = 1;           // tokens of a sequence
  std::int64_t accumulation = 1;  // micro-batches of this rank in a global step
  std::int64_t eval_rows = 0;     // sequences of an evaluation batch; 0 = no evaluation
  bool training = true;           // false: evaluation alone, with neither gradients nor optimizer state
  DType dtype = DType::kF32;
  bool fp8 =
      false;  // training's products with weights, those of adapters apart, in 8 bits (passes/fp8.h); dtype is bf16
  RecomputeMode recompute = RecomputeMode::kNone;
  std::int64_t recompute_steps = 0;  // of RecomputeMode::kFit: see plan/fit_recompute.h
  MachineRates rates;                // likewise
  // Sum the micro-batches' gradients by a fixed binary tree, so that the result does not depend on how they are spread
  // over ranks; else one after the other, in one buffer.
  bool deterministic = true;
  OptimizerSettings optimizer;
  bool master_weights = true;  // float32 copies of 16-bit weights
  // Gradients of the matrices that products alone read have the weights' type (see DifferentiateOptions): summed over
  // micro-batches and ranks they are rounded after each addition, wherever it takes place.
  bool narrow_gradients = false;
  double weight_decay = 0;
  bool decay_bias_norm = false;  // weight decay also on biases and norms
  double max_grad_norm = 0;      // 0 = no clipping
  CrossEntropyShape loss;
  std::uint64_t seed = 0;
  ZeroOptions zero;  // the ranks that share the work
  // With a task's head: rows per decision (the alternatives of a choice), and the weight of a choice's auxiliary loss.
  std::int64_t rows_per_item = 1;
  double auxiliary_weight = 0;
  // Elements of embedding tables whose gradient is exactly zero are left as they are, with their moments.
  bool sparse_embeddings = false;
  // Master weights and moments in host memory; the update reads and writes them over the link.
  bool offload_optimizer = false;
  // What the backward pass reads late waits in host memory: without recomputation all of that, else what crosses the
  // blocks' borders; tensors of fewer bytes stay.
  bool offload_activations = false;
  std::size_t offload_least_bytes = std::size_t{1} << 20;
  bool has_own_memory = false;  // whether the device's memory is not the host's, so that offloading frees some
  // Models that hear: windows of audio of a row, and log-mel frames of a window.
  std::int64_t audio_windows = 0, audio_frames = 0;
  // Shapes beside this one, whose rows are the longest: micro-batches come in all of them, and evaluation batches have
  // the same rows (eval_rows = rows). By rising length.
  std::vector<BatchShape> shorter;

  // Of the bucket with this number: of `shorter`, or the last, which is this shape without the shorter ones.
  TrainShape of_bucket(std::size_t bucket) const;
  std::size_t buckets() const { return shorter.size() + 1; }
  std::int64_t tokens() const { return rows * seq; }
  std::int64_t eval_tokens() const { return eval_rows * seq; }
  bool has_master() const { return master_weights && (dtype == DType::kBF16 || dtype == DType::kF16); }
  DType moment_dtype() const {
    return optimizer.moment_dtype == DType::kBF16 ? DType::kBF16 : accumulation_dtype(dtype);
  }
  // Micro-batches of this rank after which its gradients are summed over the ranks. Deterministic sums follow the tree
  // over the global batch: with stage 2 and 3 the ranks hold neighbouring micro-batches and sum after each; below, a
  // rank's own ones are neighbours, as many as make a whole subtree.
  std::int64_t reduce_period() const;
  // Which micro-batch of the global batch is this rank's `index`-th one.
  std::int64_t global_micro_batch(std::int64_t index) const;
};

// The options of a graph over `rows` sequences.
GraphOptions graph_options(const TrainShape& shape, GraphKind kind, std::int64_t rows);

// Gradient buffers alive at once while `count` micro-batches are summed by a binary tree in order: ⌊log₂ count⌋ + 1.
std::size_t tree_slots(std::int64_t count);

// Names of storage beside the weights' own.
std::string moment_name(int moment, const std::string& parameter);  // "exp_avg.NAME", "exp_avg_sq.NAME"
std::string error_name(const std::string& parameter);               // what 1-bit gradients have lost so far
inline constexpr const char* kUpdateScalarsName = "update_scalars";

// The name under which the optimizer sees a parameter's weight and gradient: the whole tensor, or this rank's shard.
std::string owned_name(const TrainShape& shape, const std::string& parameter);
// What of a tensor of `numel` elements this rank's optimizer owns, as a range of elements.
struct OwnedRange {
  std::int64_t first = 0, count = 0;
};
OwnedRange owned_range(const TrainShape& shape, std::int64_t numel);

// Of one shape of batches.
struct BatchPrograms {
  Program micro;                            // forward and backward pass of one micro-batch, setting the gradients
  std::optional<Program> micro_accumulate;  // the same, adding to them; only when not deterministic and accumulating
  std::optional<Program> eval;              // forward pass and loss, without dropout
};

// Empty where only evaluation is planned: micro, update. The batch programs are those of the longest rows.
struct ProgramSet : BatchPrograms {
  Layout layout;
  std::vector<BatchPrograms> shorter;  // of TrainShape::shorter
  std::optional<Program> reduce;       // the sum of a gradient slot over the ranks; stage 0 and 1 of several
  Program update;                      // clipping and the optimizer, and the gather of the updated weights
  ArenaSizes sizes;
  // One slot's gradients: those of one type lie together.
  struct GradientRun {
    DType dtype = DType::kF32;
    std::size_t offset = 0, bytes = 0;
  };
  std::vector<GradientRun> gradient_runs;
  // The most bytes any placement could do with, for the activations of all programs.
  std::size_t activation_lower_bound = 0;
  const BatchPrograms& of_bucket(std::size_t bucket) const {
    return bucket < shorter.size() ? shorter[bucket] : static_cast<const BatchPrograms&>(*this);
  }
};

// The steps of recomputation that RecomputeMode::kFit can take, in order.
std::vector<RecomputeStep> recompute_steps(const Model& model, const TrainShape& shape);

ProgramSet make_programs(const Model& model, const TrainShape& shape, const WorkspaceSizes& workspaces);

}  // namespace convoy
