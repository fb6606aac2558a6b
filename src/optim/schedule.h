// The learning rate as a pure function of the optimizer step, and the one schedule that depends on evaluations.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace convoy {

struct ScheduleSettings {
  std::string type = "linear";
  double learning_rate = 5e-5;  // the peak
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;
  std::string parameters = "{}";  // lr_scheduler_kwargs, the JSON text of a map
  // For reduce_lr_on_plateau without `mode`: whether a higher metric is better.
  bool greater_is_better = false;
  std::string where = "lr_scheduler_kwargs";  // the parameters' place, for errors
};

// Step counts executed optimizer steps from 0: a step that was skipped for a gradient that is not finite does not
// count.
class Schedule {
 public:
  using Function = std::function<double(std::int64_t)>;
  Schedule(std::string type, Function function) : type_(std::move(type)), function_(std::move(function)) {}
  const std::string& type() const { return type_; }
  double at(std::int64_t step) const { return function_(step); }

 private:
  std::string type_;
  Function function_;
};

// Hugging Face's types (transformers/optimization.py): linear, cosine, cosine_with_restarts, polynomial, constant,
// constant_with_warmup, inverse_sqrt, cosine_with_min_lr, cosine_warmup_with_min_lr, warmup_stable_decay;
// finetune-transformer-lm's warmup_linear. DeepSpeed's
// (runtime/lr_schedules.py): WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle; there step s uses
// DeepSpeed's counter t = s − 1, and what the parameters leave out comes from the settings (warmup_max_lr,
// total_num_steps, warmup_num_steps if above 0). reduce_lr_on_plateau is the constant rate until a PlateauState lowers
// it. Throws usage errors that name the parameter.
Schedule make_schedule(const ScheduleSettings& settings);

const std::vector<std::string>& schedule_types();

// torch.optim.lr_scheduler.ReduceLROnPlateau: `factor` (0.1), `patience` (10), `threshold` (1e-4), `threshold_mode`
// (rel), `cooldown` (0), `min_lr` (0), `eps` (1e-8), `mode`.
class PlateauState {
 public:
  // What a checkpoint keeps.
  struct Memory {
    double learning_rate = 0;
    std::optional<double> best;
    std::int64_t bad_evaluations = 0;
    std::int64_t cooldown_left = 0;
    friend bool operator==(const Memory&, const Memory&) = default;
  };

  explicit PlateauState(const ScheduleSettings& settings);
  double learning_rate() const { return memory_.learning_rate; }
  // After an evaluation; returns whether the learning rate was lowered.
  bool observe(double metric);

  const Memory& memory() const { return memory_; }
  void restore(const Memory& memory) { memory_ = memory; }

 private:
  bool is_better(double metric) const;
  double factor_, threshold_, min_rate_, eps_;
  std::int64_t patience_, cooldown_;
  bool higher_, relative_;
  Memory memory_;
};

}  // namespace convoy
