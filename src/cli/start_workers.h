// Starting the ranks of a training run as processes of this machine, for `convoy train` and `convoy launch`.
#pragma once

#include "cli/commands.h"
#include "config/run_config.h"
#include "launch/supervisor.h"
#include "launch/worker_environment.h"

namespace convoy {

// The words of an attempt's workers: `words` (those of `convoy train`), and after a restart where to go on from.
// `ranks` are those of the run's settings; fewer accumulate more, so that the global batch stays.
// The words with one value for a key, whatever they said of it under any of its names.
Words with_flag(const Words& words, const std::string& name, const std::string& value);
WorkerWords training_words(const RunConfig& config, const Words& words, int ranks);

// Starts `options.ranks` ranks, which are all of the run, and looks after them until they end. Restarts and elastic
// limits come from the run's settings. Returns the exit status.
int start_workers(const RunConfig& config, const Words& words, SupervisorOptions options);

// Starts the ranks of one node of a job whose launcher starts one process per node. `local_size` 0: what the launcher
// says, else num_processes of the settings, else 1.
int serve_node(const RunConfig& config, const Words& words, const NodeEnvironment& node, int local_size,
               SupervisorOptions options);

}  // namespace convoy
