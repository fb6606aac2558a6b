// A whole training run, from its settings to the saved model.
#pragma once

#include "config/run_config.h"
#include "runtime/device.h"

namespace convoy {

// Returns the exit status: 0, or 128 + signal after a clean save. `version` goes into checkpoints.
int run_training(const RunConfig& config, Device& device, const std::string& version);

// What `convoy plan` prints: the memory of the run by kind and what other settings would take. Reads no weight and no
// data.
std::string plan_run(const RunConfig& config, Device& device);

}  // namespace convoy
