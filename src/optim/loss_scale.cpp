#include "optim/loss_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace convoy {

LossScaler::LossScaler(const LossScaleSettings& settings) : settings_(settings) {
  const auto need = [](bool condition, const char* what) {
    if (!condition) throw usage_error(what).at("fp16");
  };
  need(std::isfinite(settings.loss_scale) && settings.loss_scale >= 0, "loss_scale must be a finite number, 0 or more");
  need(settings.loss_scale_window > 0, "loss_scale_window must be positive");
  need(settings.min_loss_scale > 0, "min_loss_scale must be positive");
  need(settings.hysteresis >= 1, "hysteresis must be at least 1");
  need(settings.initial_scale_power >= 0 && settings.initial_scale_power < 128,
       "initial_scale_power must be between 0 and 127");
  state_.scale = dynamic() ? std::ldexp(1.0, settings.initial_scale_power) : settings.loss_scale;
  state_.hysteresis = settings.hysteresis;
}

// An overflow at the dynamic scale.
std::string LossScaler::lower() {
  const double before = state_.scale;
  if (settings_.hysteresis > 1 && state_.hysteresis > 1) {
    --state_.hysteresis;
    return fmt::format(
        "OVERFLOW! Skipping step. Attempted loss scale: {:g}, but hysteresis is {}. Reducing hysteresis to {}", before,
        state_.hysteresis + 1, state_.hysteresis);
  }
  if (state_.scale <= settings_.min_loss_scale) {
    throw numerics_error(
        "Current loss scale already at minimum - cannot decrease scale anymore: gradients overflow float16 whatever "
        "the "
        "scale")
        .mend(
            "train in bf16 (models trained in bf16 often overflow float16), lower the learning rate, or look at the "
            "data "
            "of these steps");
  }
  state_.scale = std::max(state_.scale / 2, settings_.min_loss_scale);
  return fmt::format("OVERFLOW! Skipping step. Attempted loss scale: {:g}, reducing to {:g}", before, state_.scale);
}

std::string LossScaler::update(bool overflow) {
  if (!dynamic()) {
    ++state_.iteration;
    return overflow ? fmt::format("OVERFLOW! Skipping step. Static loss scale: {:g}", state_.scale) : "";
  }
  std::string note;
  if (overflow) {
    note = lower();
    state_.last_overflow = state_.iteration;
  } else {
    if (settings_.consecutive_hysteresis) state_.hysteresis = settings_.hysteresis;
    const std::int64_t stable = state_.iteration - state_.last_overflow - 1;
    if (stable > 0 && stable % settings_.loss_scale_window == 0) {
      if (!settings_.consecutive_hysteresis) state_.hysteresis = settings_.hysteresis;
      state_.scale *= 2;
    }
  }
  ++state_.iteration;
  return note;
}

}  // namespace convoy
