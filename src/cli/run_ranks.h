// A command that runs on one or many ranks: started by a launcher, by Convoy itself, or alone.
#pragma once

#include <functional>
#include <optional>

#include "cli/commands.h"
#include "comm/communicator.h"
#include "config/run_config.h"
#include "runtime/device.h"

namespace convoy {

// What a rank does once it has its device and knows the others. Returns the exit status.
using RankJob = std::function<int(Device&, Communicator&)>;

// Does the job as the rank that the environment names; where it names none, starts num_processes of them with the words
// `command` `words`, or does it as the only one. `local_rank`: what was taken from the words.
int run_ranks(const std::string& command, const RunConfig& config, const Words& words, std::optional<int> local_rank,
              const RankJob& job);

}  // namespace convoy
