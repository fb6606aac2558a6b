#include "optim/schedule_parameters.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/suggest.h"

namespace convoy {
namespace {

// Numbers, also as text ("1e-4" is a text in files that PyYAML wrote).
std::optional<double> as_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  double number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

ScheduleParameters::ScheduleParameters(const ScheduleSettings& settings)
    : settings_(settings), values_(std::make_unique<Json>(parse_json(settings.parameters, settings.where))) {
  if (!values_->is_object()) throw usage_error("must be a map").at(settings.where);
}

ScheduleParameters::~ScheduleParameters() = default;

Error ScheduleParameters::wrong(const std::string& name, const std::string& what) const {
  return usage_error(fmt::format("{}: `{}` {}", settings_.type, name, what)).at(settings_.where);
}

const Json* ScheduleParameters::find(const std::string& name) {
  known_.insert(name);
  const auto found = values_->find(name);
  return found == values_->end() || found->is_null() ? nullptr : &*found;
}

std::optional<double> ScheduleParameters::number(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = as_number(*value);
  if (!number || !std::isfinite(*number)) throw wrong(name, fmt::format("must be a number, not {}", value->dump()));
  return number;
}

double ScheduleParameters::required_number(const std::string& name) {
  const std::optional<double> value = number(name);
  if (!value) throw wrong(name, "is required").mend("give it in lr_scheduler_kwargs");
  return *value;
}

std::optional<std::int64_t> ScheduleParameters::count(const std::string& name) {
  const std::optional<double> value = number(name);
  if (!value) return std::nullopt;
  if (*value < 0 || *value > 1e15 || *value != std::floor(*value))
    throw wrong(name, fmt::format("must be a whole number of at least 0, not {}", *value));
  return static_cast<std::int64_t>(*value);
}

bool ScheduleParameters::flag(const std::string& name, bool fallback) {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) throw wrong(name, fmt::format("must be true or false, not {}", value->dump()));
  return value->get<bool>();
}

std::string ScheduleParameters::word(const std::string& name, const std::vector<std::string>& words) {
  const Json* value = find(name);
  if (value == nullptr) return words.front();
  if (value->is_string()) {
    for (const std::string& word : words) {
      if (value->get_ref<const std::string&>() == word) return word;
    }
  }
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : ", ") + word;
  throw wrong(name, fmt::format("must be one of {}, not {}", all, value->dump()));
}

void ScheduleParameters::finish() const {
  const std::vector<std::string> names(known_.begin(), known_.end());
  for (const auto& [name, value] : values_->items()) {
    if (known_.count(name) > 0) continue;
    std::string all;
    for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
    throw usage_error(fmt::format("{} has no parameter '{}'{}", settings_.type, name, did_you_mean(name, names)))
        .at(settings_.where)
        .mend(all.empty() ? "it has none" : "it has " + all);
  }
}

}  // namespace convoy
