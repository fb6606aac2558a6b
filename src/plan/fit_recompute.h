// The least recomputation with which a run fits into memory.
#pragma once

#include "plan/ceilings.h"
#include "plan/memory_report.h"

namespace convoy {

// Of a measured machine; without measurements those of a common one, by whether the device has its own memory.
MachineRates machine_rates(const std::optional<Ceilings>& ceilings, DType dtype, bool has_own_memory);

// How many of recompute_steps() let a run of `shape` take at most `limit.device`, from shape.recompute_steps on; all of
// them where none do. shape.recompute must be kFit.
std::int64_t fitting_recompute_steps(const Model& model, const TrainShape& shape, const WorkspaceSizes& workspaces,
                                     const MemoryLimit& limit, const BytesBeside& beside = {});

}  // namespace convoy
