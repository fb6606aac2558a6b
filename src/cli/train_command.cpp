// convoy train [RUNFILE] [--key value …]
#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/run_ranks.h"
#include "config/run_config.h"
#include "convoy_version.h"
#include "launch/worker_environment.h"
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
  Words kept = words;
  const std::optional<int> local_rank = take_local_rank(kept);
  const RunConfig config = parse_run_config(kept);
  return run_ranks("train", config, kept, local_rank, [&](Device& device, Communicator& communicator) {
    return run_training(config, device, kVersion, communicator);
  });
}

}  // namespace convoy
