// Loss scaling for fp16: DeepSpeed's dynamic rule, or a constant scale.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/train_state.h"

namespace convoy {

// DeepSpeed's keys of the fp16 section, with its defaults.
struct LossScaleSettings {
  double loss_scale = 0;  // 0: dynamic; else the constant scale
  int initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000;
  std::int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};

class LossScaler {
 public:
  // Throws a usage error for settings out of range.
  explicit LossScaler(const LossScaleSettings& settings);

  bool dynamic() const { return settings_.loss_scale == 0; }
  // What the loss of the coming step is multiplied with. Gradients are divided by the scale that they were computed
  // with (DeepSpeed divides by the one after the update, which halves the gradients of the step that doubles the
  // scale).
  double scale() const { return state_.scale; }
  // Once per optimizer step: `overflow` = a gradient of some rank was not finite, and the step was skipped. Returns a
  // line for the log, or "". Throws a numerics error when the scale cannot fall further.
  std::string update(bool overflow);

  const LossScaleState& state() const { return state_; }
  void restore(const LossScaleState& state) { state_ = state; }

 private:
  std::string lower();
  const LossScaleSettings settings_;
  LossScaleState state_;
};

}  // namespace convoy
