#include "optim/schedule.h"

#include <fmt/format.h>

#include "base/suggest.h"
#include "optim/schedule_parameters.h"

namespace convoy {

const std::vector<std::string>& schedule_types() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const NamedSchedule& schedule : huggingface_schedules()) all.emplace_back(schedule.name);
    for (const NamedSchedule& schedule : deepspeed_schedules()) all.emplace_back(schedule.name);
    all.emplace_back("reduce_lr_on_plateau");
    return all;
  }();
  return names;
}

Schedule make_schedule(const ScheduleSettings& settings) {
  if (settings.type == "reduce_lr_on_plateau") {
    const PlateauState checked(settings);
    return {settings.type, [rate = checked.learning_rate()](std::int64_t) { return rate; }};
  }
  for (const auto* group : {&huggingface_schedules(), &deepspeed_schedules()}) {
    for (const NamedSchedule& schedule : *group) {
      if (settings.type != schedule.name) continue;
      ScheduleParameters parameters(settings);
      Schedule::Function function = schedule.make(parameters);
      parameters.finish();
      return {settings.type, std::move(function)};
    }
  }
  std::string all;
  for (const std::string& name : schedule_types()) all += (all.empty() ? "" : ", ") + name;
  throw usage_error(
      fmt::format("there is no schedule '{}'{}", settings.type, did_you_mean(settings.type, schedule_types())))
      .at("lr_scheduler_type")
      .mend("choose one of " + all);
}

}  // namespace convoy
