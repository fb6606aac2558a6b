// Starting the ranks of `convoy train`, and what their words are when they are started again.
#pragma once

#include <optional>

#include "cli/commands.h"
#include "config/run_config.h"
#include "launch/supervisor.h"

namespace convoy {

// The words of each attempt: a restart goes on from the newest checkpoint of this job, and with fewer ranks accumulates
// more, so that the global batch stays. `words` are those after `train`; `ranks` is the number at the start.
WorkerWords train_words(const RunConfig& config, const Words& words, int ranks);
JobOptions job_options(const RunConfig& config, int ranks);
std::string own_program();

// Starts the ranks as processes of this machine and looks after them.
int start_workers(const RunConfig& config, const Words& words, int ranks, const std::filesystem::path& log_dir);

}  // namespace convoy
