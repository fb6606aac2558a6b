#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "optim/schedule_parameters.h"

namespace convoy {

PlateauState::PlateauState(const ScheduleSettings& settings) {
  ScheduleParameters p(settings);
  const std::vector<std::string> modes =
      settings.greater_is_better ? std::vector<std::string>{"max", "min"} : std::vector<std::string>{"min", "max"};
  higher_ = p.word("mode", modes) == "max";
  factor_ = p.number("factor", 0.1);
  patience_ = p.count("patience", 10);
  threshold_ = p.number("threshold", 1e-4);
  relative_ = p.word("threshold_mode", {"rel", "abs"}) == "rel";
  cooldown_ = p.count("cooldown", 0);
  min_rate_ = p.number("min_lr", 0);
  eps_ = p.number("eps", 1e-8);
  p.finish();
  if (!(factor_ >= 0 && factor_ < 1)) throw p.wrong("factor", fmt::format("must be below 1, not {}", factor_));
  memory_.learning_rate = settings.learning_rate;
}

bool PlateauState::is_better(double metric) const {
  if (!memory_.best) return !std::isnan(metric);
  const double best = *memory_.best;
  const double step = relative_ ? threshold_ * best : threshold_;
  return higher_ ? metric > best + step : metric < best - step;
}

bool PlateauState::observe(double metric) {
  if (is_better(metric)) {
    memory_.best = metric;
    memory_.bad_evaluations = 0;
  } else {
    ++memory_.bad_evaluations;
  }
  if (memory_.cooldown_left > 0) {
    --memory_.cooldown_left;
    memory_.bad_evaluations = 0;
  }
  if (memory_.bad_evaluations <= patience_) return false;
  memory_.cooldown_left = cooldown_;
  memory_.bad_evaluations = 0;
  const double lower = std::max(memory_.learning_rate * factor_, min_rate_);
  if (memory_.learning_rate - lower <= eps_) return false;
  memory_.learning_rate = lower;
  return true;
}

}  // namespace convoy
