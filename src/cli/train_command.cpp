// convoy train [RUNFILE] [--key value …]
#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "config/run_config.h"
#include "convoy_version.h"
#include "cpu/cpu_device.h"
#include "train/run.h"

namespace convoy {

int train_command(const Words& words) {
  if (std::any_of(words.begin(), words.end(),
                  [](const std::string& word) { return word == "--help" || word == "-h"; })) {
    fmt::print(
        "usage: convoy train [RUNFILE] [--key value …]\n\nEvery key of a run file is also a flag; a flag wins over the "
        "file.\n\n{}",
        config_help());
    return 0;
  }
  const RunConfig config = parse_run_config(words);
  CpuDevice device;
  const std::unique_ptr<Communicator> communicator = make_single_communicator();
  return run_training(config, device, kVersion, *communicator);
}

}  // namespace convoy
