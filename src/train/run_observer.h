// What a run tells while it trains: the terminal, a JSONL log, TensorBoard and trainer_state.json.
#pragma once

#include <chrono>
#include <memory>

#include "config/run_config.h"
#include "monitor/gpu_statistics.h"
#include "monitor/jsonl_log.h"
#include "monitor/progress.h"
#include "monitor/tensorboard.h"
#include "monitor/trainer_state.h"
#include "train/trainer.h"

namespace convoy {

class RunObserver final : public TrainingObserver {
 public:
  struct Settings {
    std::int64_t max_steps = 0;
    std::int64_t log_every = 1;
    std::int64_t eval_every = 0, save_every = 0;
    std::int64_t steps_per_epoch = 0;
    bool log_each_epoch = false, log_nothing = false, log_first = false;
    std::size_t memory_bytes = 0;
    double flops_per_token = 0;
    double flops_per_step = 0;  // of all ranks, without recomputation
    int ranks = 1;
    // What one rank's card was measured to do at best, and the name of the measured card.
    struct Ceiling {
      std::string card;
      double flops_per_second = 0;
    };
    std::optional<Ceiling> ceiling;
    std::optional<GpuStatistics::Options> gpu;  // the card to watch
  };
  RunObserver(const RunConfig& config, const Settings& settings, std::optional<std::int64_t> resumed_step);

  // Takes up the log history of a checkpoint.
  void resume(const std::filesystem::path& checkpoint);
  void on_step(const StepResult& result) override;
  void on_evaluation(const EvaluationResult& result) override;
  void on_best_checkpoint(const std::filesystem::path& folder) override;
  void on_checkpoint(std::int64_t step, const std::filesystem::path& folder, double seconds, double stall) override;
  std::string trainer_state(std::int64_t step, double epoch) override;
  // The summary at the end of the run; writes trainer_state.json into output_dir.
  void finish(const StepResult* last);

  const StepResult* last_step() const { return last_ ? &*last_ : nullptr; }

 private:
  void log(const LogRecord& record, std::int64_t step);
  void add_speed(StepReport& report, double flops_per_second) const;
  void print_details(const StepResult& result, bool due);
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

  const RunConfig& config_;
  const Settings settings_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<JsonlLog> jsonl_;
  std::unique_ptr<EventWriter> events_;
  std::unique_ptr<GpuStatistics> gpu_;
  TrainerState state_;
  std::optional<StepResult> last_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  // Sums since the last log.
  double loss_sum_ = 0, log_seconds_ = 0;
  std::int64_t steps_since_log_ = 0, tokens_since_log_ = 0;
  double total_loss_ = 0;
  std::int64_t total_steps_ = 0, total_tokens_ = 0, total_samples_ = 0;
  double finite_loss_ = 0;  // the running mean that stands in for a loss that is not finite, in the log only
};

}  // namespace convoy
