// lr_scheduler_kwargs with checks, and the schedules' factories.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "optim/schedule.h"

namespace convoy {

// Reads named parameters; finish() refuses those that nobody asked for.
class ScheduleParameters {
 public:
  explicit ScheduleParameters(const ScheduleSettings& settings);
  ~ScheduleParameters();
  ScheduleParameters(const ScheduleParameters&) = delete;
  ScheduleParameters& operator=(const ScheduleParameters&) = delete;

  std::optional<double> number(const std::string& name);
  double number(const std::string& name, double fallback) { return number(name).value_or(fallback); }
  double required_number(const std::string& name);
  std::optional<std::int64_t> count(const std::string& name);
  std::int64_t count(const std::string& name, std::int64_t fallback) { return count(name).value_or(fallback); }
  bool flag(const std::string& name, bool fallback);
  // One of `words`; the first is the fallback.
  std::string word(const std::string& name, const std::vector<std::string>& words);
  void finish() const;
  Error wrong(const std::string& name, const std::string& what) const;
  const ScheduleSettings& settings() const { return settings_; }

 private:
  const Json* find(const std::string& name);
  const ScheduleSettings settings_;
  std::unique_ptr<Json> values_;
  std::set<std::string> known_;
};

using ScheduleFactory = Schedule::Function (*)(ScheduleParameters&);
struct NamedSchedule {
  const char* name;
  ScheduleFactory make;
};
const std::vector<NamedSchedule>& huggingface_schedules();
const std::vector<NamedSchedule>& deepspeed_schedules();

}  // namespace convoy
