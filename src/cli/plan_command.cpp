// convoy plan [RUNFILE] [--key value …]
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/commands.h"
#include "config/run_config.h"
#include "devices/make_device.h"
#include "train/run_plan.h"

namespace convoy {

int plan_command(const Words& words) {
  if (std::any_of(words.begin(), words.end(),
                  [](const std::string& word) { return word == "--help" || word == "-h"; })) {
    fmt::print(
        "usage: convoy plan [RUNFILE] [--key value …]\n\nTakes the words of convoy train and says what memory that run "
        "takes.\n\n{}",
        config_help());
    return 0;
  }
  const RunConfig config = parse_run_config(words);
  const std::unique_ptr<Device> device = make_device(
      config.device, {0, static_cast<int>(config.num_processes.value_or(1)), config.deterministic, config.tf32});
  const std::string text = plan_run(config, *device);
  fmt::print("{}", text);
  return static_cast<int>(text.ends_with("does not fit\n") ? Status::kDoesNotFit : Status::kDone);
}

}  // namespace convoy
