// The training loop of one rank: steps, evaluation, checkpoints, and what is told about them.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "optim/loss_scale.h"
#include "optim/schedule.h"
#include "train/checkpoint_saver.h"
#include "train/rank_sums.h"

namespace convoy {

// What happened in one optimizer step.
struct StepResult {
  std::int64_t step = 0;  // 1-based
  std::int64_t max_steps = 0;
  double epoch = 0;     // epochs passed, with the part of the present one
  double loss = 0;      // mean over the targets of the global batch; with an auxiliary loss, the weighted sum
  double accuracy = 0;  // share of targets that were the most likely token, alternative or class
  std::optional<double> task_loss, auxiliary_loss;  // the parts of that sum
  double learning_rate = 0;                         // the one used
  double gradient_norm = 0;                         // before clipping
  bool skipped = false;
  std::int64_t tokens = 0;  // of the global batch, without padding
  double seconds = 0;       // of the step
  std::int64_t tokens_seen = 0;
  std::optional<double> loss_scale;        // fp16: the one used
  std::int64_t skipped_steps = 0;          // so far
  std::optional<Executor::Timing> timing;  // wall_clock_breakdown
  // Several ranks: the time that the slowest one computed and that the one which waited longest waited.
  int slowest_rank = 0;
  double slowest_seconds = 0, fastest_seconds = 0, longest_wait = 0;
};

struct EvaluationResult {
  std::string data = "eval";             // what it was made on: the prefix of its figures ("eval", "test")
  bool task = false;                     // of a task's head: the loss is not one per token
  std::optional<double> auxiliary_loss;  // the language model's, where the task's loss is beside it
  std::int64_t step = 0;
  double epoch = 0;
  double loss = 0;
  double accuracy = 0;
  std::int64_t targets = 0;
  std::int64_t samples = 0, batches = 0;  // documents; batches of one rank
  double seconds = 0;
  std::vector<std::pair<std::string, double>> more;  // of TrainerOptions::predict
  bool best = false;                                 // the best so far
  double watched = 0;                                // the value of the metric that decides
  std::int64_t without_progress = 0;                 // evaluations in a row, for early stopping
};

// Hears of the run's events, in the training thread.
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;
  virtual void on_step(const StepResult& /*report*/) {}
  virtual void on_evaluation(const EvaluationResult& /*report*/) {}
  // `stall`: how long training stood still for it; it was written in `seconds`.
  virtual void on_checkpoint(std::int64_t /*step*/, const std::filesystem::path& /*folder*/, double /*seconds*/,
                             double /*stall*/) {}
  // The checkpoint of this name, which is about to be written, is the best of those saved.
  virtual void on_best_checkpoint(const std::filesystem::path& /*folder*/) {}
  // The text of trainer_state.json for a checkpoint made now.
  virtual std::string trainer_state(std::int64_t /*step*/, double /*epoch*/) { return {}; }
};

struct TrainerOptions {
  std::int64_t max_steps = 0;
  std::int64_t steps_per_epoch = 0;
  std::int64_t eval_every = 0;  // steps; 0 = never (but at the end of an epoch where eval_each_epoch)
  std::int64_t save_every = 0;
  bool eval_each_epoch = false, save_each_epoch = false, save_best = false, eval_first = false;
  double eval_delay = 0;             // epochs where eval_each_epoch, else steps
  bool micro_batch_average = false;  // loss_average: micro_batch
  bool keep_best = false;            // load_best_model_at_end
  bool greater_is_better = false;
  std::string best_metric = "eval_loss";
  std::int64_t early_stopping_patience = 0;
  double early_stopping_threshold = 0;
  // More figures of an evaluation of `data` ("eval", "test"), as "eval_wer". Every rank calls, and gets the same.
  std::function<std::vector<std::pair<std::string, double>>(const std::string& data)> predict;
  std::string version;  // of the program, into the checkpoints
  std::uint64_t data_seed = 0;
  std::string data_fingerprint;    // of the tokens and how rows are made of them
  std::int64_t rows_per_step = 1;  // at most, where steps differ
  std::int64_t rows_per_epoch = 0;
  std::optional<int> save_total_limit;
  bool save_only_model = false;
  bool save_beside = true;      // write checkpoints while training goes on
  bool timing = false;          // wall_clock_breakdown
  std::filesystem::path trace;  // empty: none
  std::filesystem::path carry_from;
};

class Trainer {
 public:
  using MakeLoader = std::function<std::unique_ptr<Loader>(const Cursor& start)>;
  // All must outlive the trainer. `evaluation` may be empty; it makes a loader that ends after one epoch.
  Trainer(Engine& engine, const ModelSource& source, WeightMap weights, MakeLoader training, MakeLoader evaluation,
          const Schedule& schedule, std::optional<PlateauState> plateau, std::optional<LossScaler> scaler,
          CheckpointStore& store, TrainerOptions options, TrainingObserver& observer,
          Communicator* communicator = nullptr);

  // Continues where a checkpoint stood.
  void resume(const std::filesystem::path& checkpoint);
  // Trains to the end. Returns 0, or 128 + the signal number that ended it early after a clean save.
  int run();
  // Mean loss over the evaluation data.
  EvaluationResult evaluate(const MakeLoader& data);

  const TrainingState& state() const { return state_; }
  // Evaluates on other data than those of the run's evaluations, and tells the observer.
  void evaluate_on(const MakeLoader& data, const std::string& name);
  std::optional<std::filesystem::path> best_checkpoint() const;

 private:
  StepResult train_step();
  void check_numbers(const StepResult& report);
  // `counts`: for the best model, early stopping and the learning rate.
  void evaluate_now(bool counts = true);
  bool is_better(double value, const std::optional<BestMetric>& than, double by = 0) const;
  bool evaluation_due(bool last) const;
  void save_now();
  void finish_save(bool wait);
  void start_trace();
  void end_trace();
  bool has_task() const { return engine_.model().task_head() != nullptr; }
  double auxiliary_weight() const { return engine_.shape().auxiliary_weight; }
  int ranks() const { return communicator_ == nullptr ? 1 : communicator_->size(); }
  bool should_stop_early() const;
  double epoch_position() const;

  Engine& engine_;
  const ModelSource& source_;
  const WeightMap weights_;
  const MakeLoader training_, evaluation_;
  std::unique_ptr<Loader> loader_;
  const Schedule& schedule_;
  std::optional<PlateauState> plateau_;  // lowers the learning rate on evaluations; instead of the schedule
  std::optional<LossScaler> scaler_;     // fp16
  CheckpointStore& store_;
  const TrainerOptions options_;
  TrainingObserver& observer_;
  Communicator* const communicator_;
  CheckpointSaver saver_;
  std::unique_ptr<Trace> trace_;
  TrainingState state_;
  bool epoch_ended_ = false;
  int signal_ = 0;  // that some rank received
  double waited_ = 0;
  std::int64_t skipped_in_a_row_ = 0;
  std::int64_t evaluations_without_progress_ = 0;
  std::int64_t saved_at_ = -1;
  std::optional<BestMetric> latest_;          // evaluation
  std::optional<std::int64_t> best_at_save_;  // the best step when the checkpoint under way was started
};

// Signals that ask the run to end: the number of the last one, or 0. Installed for the life of the object.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  static int received();
};

}  // namespace convoy
