// The memory of a training run, before it starts: what each rank takes, whether it fits, and how much to recompute so
// that it does.
#pragma once

#include <optional>
#include <string>

#include "comm/communicator.h"
#include "config/run_config.h"
#include "plan/ceilings.h"
#include "runtime/device.h"
#include "train/run_setup.h"

namespace convoy {

// What of the settings follows from the number of ranks.
RunConfig for_ranks(const RunConfig& given, int ranks);
// Those of the named file, or those that `convoy bench` has left for this device.
std::optional<Ceilings> known_ceilings(const RunConfig& config, const Device& device);
// recompute: fit. The ranks take the same steps: as many as the one with the least room needs. All ranks must call.
void fit_recompute(const RunConfig& config, const ModelSource& source, const std::optional<Ceilings>& ceilings,
                   Device& device, Communicator& communicator, TrainShape& shape);
// Throws a does-not-fit error; the first rank logs what is planned.
void report_plan(const ModelSource& source, const TrainShape& shape, const RunConfig& config, Device& device,
                 bool first);

// What `convoy plan` prints: the memory of every rank by kind and what other settings would take. Reads no weight and
// no data, but for the manifests of a run with duration_buckets, from which its shapes follow.
std::string plan_run(const RunConfig& config, Device& device);

}  // namespace convoy
