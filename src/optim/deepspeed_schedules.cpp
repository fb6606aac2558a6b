// t: DeepSpeed's last_batch_iteration, −1 at the first step (deepspeed/runtime/lr_schedules.py).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/schedule_parameters.h"

namespace convoy {
namespace {

double counter(std::int64_t step) {
  return static_cast<double>(step) - 1;
}

// The rise from 0 to 1 in N steps; N is at least 2.
struct Warmup {
  double steps;
  bool logarithmic;
  explicit Warmup(ScheduleParameters& p) {
    constexpr std::int64_t kDeepSpeedDefault = 1000;
    const std::int64_t wanted = p.settings().warmup_steps;
    // -1 stands for DeepSpeed's "auto": the run's warm-up, also where it has none.
    const bool automatic = p.number("warmup_num_steps") == -1.0;
    const std::int64_t given =
        automatic ? wanted : p.count("warmup_num_steps", wanted > 0 ? wanted : kDeepSpeedDefault);
    steps = static_cast<double>(std::max<std::int64_t>(2, given));
    logarithmic = p.word("warmup_type", {"log", "linear"}) == "log";
  }
  double gamma(double t) const {
    if (t >= steps) return 1;
    return logarithmic ? std::log(t + 1) / std::log(steps) : t / steps;
  }
};

double total_steps(ScheduleParameters& p) {
  const std::int64_t total = p.count("total_num_steps", p.settings().total_steps);
  if (total <= 0) throw p.wrong("total_num_steps", "must be above 0");
  return static_cast<double>(total);
}

Schedule::Function warmup_lr(ScheduleParameters& p) {
  const double low = p.number("warmup_min_lr", 0);
  const double high = p.number("warmup_max_lr", p.settings().learning_rate);
  const Warmup warmup(p);
  return [=](std::int64_t step) {
    const double t = counter(step);
    return t < 0 ? low : low + (high - low) * warmup.gamma(t);
  };
}

Schedule::Function warmup_decay_lr(ScheduleParameters& p) {
  const double low = p.number("warmup_min_lr", 0);
  const double high = p.number("warmup_max_lr", p.settings().learning_rate);
  const double total = total_steps(p);
  const Warmup warmup(p);
  return [=](std::int64_t step) {
    const double t = counter(step);
    if (t < 0) return low;
    const double share =
        t < warmup.steps ? warmup.gamma(t) : std::max(0.0, (total - t) / std::max(1.0, total - warmup.steps));
    return low + (high - low) * share;
  };
}

Schedule::Function warmup_cosine_lr(ScheduleParameters& p) {
  const double rate = p.settings().learning_rate;
  const double low = p.number("warmup_min_ratio", 0);
  const double least = p.number("cos_min_ratio", 1e-4);
  const double total = total_steps(p);
  const Warmup warmup(p);
  return [=](std::int64_t step) {
    const double t = counter(step);
    if (t < 0) return 0.0;
    if (t < warmup.steps) return rate * (low + (1 - low) * warmup.gamma(t));
    const double progress = std::min(1.0, (t - warmup.steps + 1) / std::max(1.0, total - warmup.steps));
    const double wave = (1 + std::cos(std::numbers::pi * progress)) / 2;
    return rate * std::max(0.0, least + (1 - least) * wave);
  };
}

Schedule::Function lr_range_test(ScheduleParameters& p) {
  const double low = p.number("lr_range_test_min_lr", 1e-3);
  const double size = p.number("lr_range_test_step_size", 2000);
  const double rate = p.number("lr_range_test_step_rate", 1);
  const bool stairs = p.flag("lr_range_test_staircase", false);
  if (low <= 0) throw p.wrong("lr_range_test_min_lr", fmt::format("must be above 0, not {}", low));
  if (size <= 0) throw p.wrong("lr_range_test_step_size", fmt::format("must be above 0, not {}", size));
  return [=](std::int64_t step) {
    const double interval = (counter(step) + 1) / size;
    return low * (1 + rate * (stairs ? std::floor(interval) : interval));
  };
}

// Parameters that would need a momentum that changes, or that DeepSpeed reads but never uses.
void refuse_cycle_extras(ScheduleParameters& p) {
  if (p.flag("cycle_momentum", true))
    throw p.wrong("cycle_momentum", "is not supported, and true unless given: the momentum stays fixed")
        .mend("set cycle_momentum: false");
  for (const char* name : {"cycle_min_mom", "cycle_max_mom", "decay_mom_rate"}) {
    if (p.number(name)) throw p.wrong(name, "has no meaning without cycle_momentum").mend("leave it out");
  }
  for (const char* name : {"cycle_first_stair_count", "cycle_second_stair_count"}) {
    if (p.count(name, 0) != 0) throw p.wrong(name, "is not supported: the cycle has no stairs").mend("leave it out");
  }
}

Schedule::Function one_cycle(ScheduleParameters& p) {
  const double low = p.required_number("cycle_min_lr");
  const double high = p.required_number("cycle_max_lr");
  const double first = p.number("cycle_first_step_size", 2000);
  const double second = p.number("cycle_second_step_size", first);
  const double decay_rate = p.number("decay_lr_rate", 0);
  const double decay_size = p.number("decay_step_size", 0);
  if (first <= 0) throw p.wrong("cycle_first_step_size", fmt::format("must be above 0, not {}", first));
  if (second <= 0) throw p.wrong("cycle_second_step_size", fmt::format("must be above 0, not {}", second));
  if (decay_size < 0) throw p.wrong("decay_step_size", fmt::format("must be at least 0, not {}", decay_size));
  refuse_cycle_extras(p);
  const double length = first + second;
  const double ratio = first / length;
  return [=](std::int64_t step) {
    const double batch = counter(step) + 1;
    if (batch >= length) {
      const double interval = decay_size > 0 ? (batch - length) / decay_size : 0;
      return low / (1 + decay_rate * interval);
    }
    const double cycles = 1 + batch / length;
    const double x = 1 + batch / length - std::floor(cycles);
    const double scale = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
    return low + (high - low) * scale;
  };
}

}  // namespace

const std::vector<NamedSchedule>& deepspeed_schedules() {
  static const std::vector<NamedSchedule> schedules = {
      {"WarmupLR", warmup_lr},
      {"WarmupDecayLR", warmup_decay_lr},
      {"WarmupCosineLR", warmup_cosine_lr},
      {"LRRangeTest", lr_range_test},
      {"OneCycle", one_cycle},
  };
  return schedules;
}

}  // namespace convoy
