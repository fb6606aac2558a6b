// The training step of one rank, or its evaluation alone: arenas, prepared programs, and the sum over micro-batches.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "plan/program_set.h"
#include "runtime/executor.h"
#include "train/parameter_store.h"

namespace convoy {

// One micro-batch, [rows·seq] each; see batch_input in models/model.h.
struct BatchView {
  std::span<const std::int32_t> input_ids, targets, positions, seq_start;
  std::span<const std::uint64_t> token_keys;
  // Models that hear: log-mel frames of the windows, and where text has places for audio (else empty).
  std::span<const float> audio_features = {};
  std::span<const std::int32_t> audio_rows = {};
  // With a task's head.
  std::span<const std::int32_t> head_rows = {}, head_labels = {};
  std::span<const std::uint64_t> head_keys = {};
  // Models that mask padding: encoder frames of each window that are sound.
  std::span<const std::int32_t> audio_lengths = {};
  std::int32_t bucket = -1;  // the shape's: see TrainShape::shorter; -1: the last
};

// Of the objective: the language model's tokens, or what a task's head decides.
struct LossTotals {
  double loss_sum = 0;
  double targets = 0;
  double correct = 0;                               // targets that were the most likely token, alternative or class
  double auxiliary_sum = 0, auxiliary_targets = 0;  // of a language-model loss beside it
  double auxiliary_mean() const { return auxiliary_targets > 0 ? auxiliary_sum / auxiliary_targets : 0; }
  double mean() const { return targets > 0 ? loss_sum / targets : 0; }
  LossTotals& operator+=(const LossTotals& other);
};

struct UpdateResult {
  double gradient_norm = 0;  // before clipping
  bool skipped = false;      // a gradient was not finite: nothing was updated
};

class Engine {
 public:
  // `communicator` joins the ranks of shape.zero; not needed for one. All must outlive the engine.
  Engine(Device& device, const Model& model, const TrainShape& shape, Communicator* communicator = nullptr);

  // Starts the forward and backward pass. `scale` multiplies the gradient of the micro-batch's loss sum,
  // `auxiliary_scale` that of the loss beside it. The ranks' calls must be the micro-batches that
  // shape().global_micro_batch says. The host does not wait for the device.
  void start_micro_step(const BatchView& batch, double scale, double auxiliary_scale = 0);
  // Starts the forward pass of an evaluation batch.
  void start_evaluate(const BatchView& batch);
  // The totals of what was started since the last call, in order; waits for the device.
  std::vector<LossTotals> take_losses();
  // Each with its totals at once.
  LossTotals micro_step(const BatchView& batch, double scale, double auxiliary_scale = 0);
  LossTotals evaluate(const BatchView& batch);

  // Finishes the sum over the micro-batches since the last update, clips, and runs the optimizer. `step` counts
  // executed updates, from 1.
  // `unscale` undoes the loss scale that the gradients carry.
  UpdateResult update(double learning_rate, std::int64_t step, double unscale = 1);

  ParameterStore& store() { return store_; }
  const ParameterStore& store() const { return store_; }
  // The gradient of a parameter summed so far in the first slot (tests).
  std::vector<std::byte> gradient(std::size_t parameter) const;

  // Observation of the instructions; see Executor.
  void set_trace(Trace* trace);
  void set_timing(bool on);
  Executor::Timing take_timing();

  const Model& model() const { return model_; }
  const TrainShape& shape() const { return shape_; }
  const ProgramSet& programs() const { return programs_; }
  Executor& micro_executor(std::size_t bucket) { return *buckets_[bucket].micro; }
  Executor& micro_executor() { return micro_executor(buckets_.size() - 1); }
  // Bytes of the activation arena that evaluation touches; 0 without evaluation.
  std::size_t eval_high_water() const;

 private:
  // What runs batches of one shape.
  struct Bucket {
    TrainShape shape;
    std::unique_ptr<Executor> micro, micro_accumulate, eval;
    std::vector<BatchConstant> constants;
  };
  void prepare_bucket(std::size_t index);
  void prepare_update();
  // Makes the shape of a batch the present one.
  Bucket& enter(const BatchView& batch);
  void put_heard(const Bucket& bucket, const BatchView& batch, std::int64_t rows);
  void put(const char* name, std::span<const std::byte> bytes);
  void copy_batch(const Bucket& bucket, const BatchView& batch);
  void put_row_keys(const TrainShape& shape, std::span<const std::uint64_t> token_keys);
  void set_scalar_input(const char* name, double value);
  std::vector<Executor*> executors() const;
  void merge_top();
  void merge_complete();
  void start_statistics(const Program& program);
  void collect_statistics();
  LossTotals take_last();
  std::byte* address(Role role, const std::string& name) const;

  Device& device_;
  const Model& model_;
  const TrainShape shape_;
  Communicator* const communicator_;
  const bool masks_padding_;  // AudioInput::masks_padding
  const ProgramSet programs_;
  Arenas arenas_;
  ParameterStore store_;
  std::vector<Bucket> buckets_;
  std::size_t entered_ = SIZE_MAX;  // the bucket whose constants are there
  HeardInputs heard_;
  std::unique_ptr<Executor> reduce_, update_;
  std::vector<std::unique_ptr<Kernel>> add_gradients_;  // one for each of the gradients' runs
  // The partial sums on the stack of gradient slots: how many of this rank's micro-batches each holds. Those of
  // reduce_period() and more are sums over all ranks.
  std::vector<std::int64_t> partial_sums_;
  bool top_reduced_ = false;  // whether the top one is a sum over the ranks already
  std::int64_t table_length_ = 0;
  // The statistics of what was started, as the device writes them into memory of the host; then as numbers.
  std::unique_ptr<DeviceMemory> statistics_;
  struct Started {
    DType dtype = DType::kF32;
    bool auxiliary = false;
  };
  std::vector<Started> started_;
  std::vector<LossTotals> losses_;
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> row_keys_;  // by batch input
};

}  // namespace convoy
