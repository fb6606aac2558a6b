// A whole training run, from its settings to the saved model.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "config/run_config.h"
#include "runtime/device.h"

namespace convoy {

// Returns the exit status: 0, or 128 + signal after a clean save. `version` goes into checkpoints. `communicator` joins
// the ranks of the run, which all call with the same settings. On a GPU the first rank's logs say how its card does.
int run_training(const RunConfig& settings, Device& device, const std::string& version, Communicator& communicator);

// What can be found wrong before any rank starts, so that it is said once. Throws usage errors.
void check_before_start(const RunConfig& config);

}  // namespace convoy
