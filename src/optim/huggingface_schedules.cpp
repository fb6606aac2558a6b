// s: step, W: warm-up steps, T: all steps, as in transformers/optimization.py. Each gives learning_rate · λ(s).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/schedule_parameters.h"

namespace convoy {
namespace {

constexpr double kPi = std::numbers::pi;

// The three numbers that every schedule starts from, as doubles.
struct Span {
  double rate, warmup, total;
  explicit Span(const ScheduleParameters& p)
      : rate(p.settings().learning_rate),
        warmup(static_cast<double>(p.settings().warmup_steps)),
        total(static_cast<double>(p.settings().total_steps)) {}
  double rise(double s) const { return s / std::max(1.0, warmup); }
  // How much of the steps after warm-up is done.
  double progress(double s) const { return (s - warmup) / std::max(1.0, total - warmup); }
};

// Linear warm-up, then `after(span, s)`.
template <typename After>
Schedule::Function warmed(const Span& span, After after) {
  return [span, after](std::int64_t step) {
    const auto s = static_cast<double>(step);
    return span.rate * (s < span.warmup ? span.rise(s) : after(span, s));
  };
}

Schedule::Function linear(ScheduleParameters& p) {
  return warmed(Span(p), [](const Span& a, double s) {
    return std::max(0.0, (a.total - s) / std::max(1.0, a.total - a.warmup));
  });
}

Schedule::Function constant(ScheduleParameters& p) {
  return [rate = p.settings().learning_rate](std::int64_t) { return rate; };
}

Schedule::Function constant_with_warmup(ScheduleParameters& p) {
  return warmed(Span(p), [](const Span&, double) { return 1.0; });
}

double cosine_wave(double cycles, double progress) {
  return 0.5 * (1 + std::cos(2 * kPi * cycles * progress));
}

Schedule::Function cosine(ScheduleParameters& p) {
  const double cycles = p.number("num_cycles", 0.5);
  return warmed(Span(p),
                [cycles](const Span& a, double s) { return std::max(0.0, cosine_wave(cycles, a.progress(s))); });
}

Schedule::Function cosine_with_restarts(ScheduleParameters& p) {
  const double cycles = p.number("num_cycles", 1);
  return warmed(Span(p), [cycles](const Span& a, double s) {
    const double progress = a.progress(s);
    if (progress >= 1) return 0.0;
    return std::max(0.0, 0.5 * (1 + std::cos(kPi * std::fmod(cycles * progress, 1.0))));
  });
}

Schedule::Function polynomial(ScheduleParameters& p) {
  const double end = p.number("lr_end", 1e-7);
  const double power = p.number("power", 1);
  if (end < 0 || !(p.settings().learning_rate > end))
    throw p.wrong("lr_end", fmt::format("must be at least 0 and below learning_rate, not {}", end));
  return warmed(Span(p), [end, power](const Span& a, double s) {
    if (s > a.total) return end / a.rate;
    return ((a.rate - end) * std::pow(1 - a.progress(s), power) + end) / a.rate;
  });
}

Schedule::Function inverse_sqrt(ScheduleParameters& p) {
  constexpr double kDefaultTimescale = 10'000;
  const Span span(p);
  const double scale = p.number("timescale", span.warmup > 0 ? span.warmup : kDefaultTimescale);
  if (scale <= 0) throw p.wrong("timescale", fmt::format("must be above 0, not {}", scale));
  return warmed(span, [scale](const Span& a, double s) { return 1 / std::sqrt((s + scale - a.warmup) / scale); });
}

// min_lr_rate, or min_lr as a share of the learning rate: exactly one.
double minimum_share(ScheduleParameters& p) {
  const auto absolute = p.number("min_lr");
  const auto share = p.number("min_lr_rate");
  if (absolute.has_value() == share.has_value())
    throw p.wrong("min_lr", absolute ? "and `min_lr_rate` exclude each other" : "or `min_lr_rate` is required")
        .mend("give exactly one of them in lr_scheduler_kwargs");
  const double result = share ? *share : *absolute / p.settings().learning_rate;
  if (!(result >= 0 && result <= 1))
    throw p.wrong(share ? "min_lr_rate" : "min_lr",
                  fmt::format("must lie between 0 and {}", share ? "1" : "learning_rate"));
  return result;
}

Schedule::Function cosine_with_min_lr(ScheduleParameters& p) {
  const double cycles = p.number("num_cycles", 0.5);
  const double least = minimum_share(p);
  return warmed(Span(p), [cycles, least](const Span& a, double s) {
    return std::max(0.0, cosine_wave(cycles, a.progress(s)) * (1 - least) + least);
  });
}

Schedule::Function cosine_warmup_with_min_lr(ScheduleParameters& p) {
  const double cycles = p.number("num_cycles", 0.5);
  const double least = minimum_share(p);
  const auto first = p.number("warmup_lr_rate");
  const Span a(p);
  return [=](std::int64_t step) {
    const auto s = static_cast<double>(step);
    if (s < a.warmup) {
      const double rise = first ? *first + (1 - *first) * s / std::max(1.0, a.warmup - 1) : a.rise(s + 1);
      return a.rate * rise;
    }
    return a.rate * std::max(0.0, cosine_wave(cycles, a.progress(s + 1)) * (1 - least) + least);
  };
}

double warmup_shape(const std::string& type, double progress) {
  if (type == "linear") return progress;
  if (type == "cosine") return 0.5 * (1 - std::cos(kPi * progress));
  return 1 - std::sqrt(1 - progress);
}

double decay_shape(const std::string& type, double cycles, double progress) {
  if (type == "linear") return 1 - progress;
  if (type == "cosine") return cosine_wave(cycles, progress);
  return 1 - std::sqrt(progress);
}

Schedule::Function warmup_stable_decay(ScheduleParameters& p) {
  const std::vector<std::string> shapes = {"linear", "cosine", "1-sqrt"};
  const auto decay_steps = p.count("num_decay_steps");
  if (!decay_steps) throw p.wrong("num_decay_steps", "is required").mend("give it in lr_scheduler_kwargs");
  const Span a(p);
  const auto decay = static_cast<double>(*decay_steps);
  const auto stable = static_cast<double>(
      p.count("num_stable_steps",
              std::max<std::int64_t>(0, p.settings().total_steps - p.settings().warmup_steps - *decay_steps)));
  if (a.warmup + stable + decay > a.total)
    throw p
        .wrong("num_decay_steps",
               fmt::format("is {}: warm-up ({}), stable ({}) and decay are more than the {} steps of "
                           "the run",
                           decay, a.warmup, stable, a.total))
        .mend("make them fit");
  const std::string up = p.word("warmup_type", shapes);
  const std::string down = p.word("decay_type", {"cosine", "linear", "1-sqrt"});
  const double least = p.number("min_lr_ratio", 0);
  const double cycles = p.number("num_cycles", 0.5);
  return [=](std::int64_t step) {
    const auto s = static_cast<double>(step);
    const auto lifted = [&](double factor) { return a.rate * std::max(0.0, factor * (1 - least) + least); };
    if (s < a.warmup) return lifted(warmup_shape(up, a.rise(s)));
    if (s < a.warmup + stable) return a.rate;
    if (s < a.warmup + stable + decay)
      return lifted(decay_shape(down, cycles, (s - a.warmup - stable) / std::max(1.0, decay)));
    return a.rate * least;
  };
}

// finetune-transformer-lm's schedules (opt.py), of x = s / T and the warm-up's share w of it: up to it x / w, and after
// it 1; here and in all of warmup_linear times 1 − x.
Schedule::Function warmup_linear(ScheduleParameters& p) {
  return [a = Span(p)](std::int64_t step) {
    const double x = std::min(1.0, static_cast<double>(step) / std::max(1.0, a.total));
    const double w = a.warmup / std::max(1.0, a.total);
    return a.rate * (x <= w && w > 0 ? x / w : 1) * (1 - x);
  };
}

}  // namespace

const std::vector<NamedSchedule>& huggingface_schedules() {
  static const std::vector<NamedSchedule> schedules = {
      {"linear", linear},
      {"cosine", cosine},
      {"cosine_with_restarts", cosine_with_restarts},
      {"polynomial", polynomial},
      {"constant", constant},
      {"constant_with_warmup", constant_with_warmup},
      {"inverse_sqrt", inverse_sqrt},
      {"cosine_with_min_lr", cosine_with_min_lr},
      {"cosine_warmup_with_min_lr", cosine_warmup_with_min_lr},
      {"warmup_stable_decay", warmup_stable_decay},
      {"warmup_linear", warmup_linear},
  };
  return schedules;
}

}  // namespace convoy
