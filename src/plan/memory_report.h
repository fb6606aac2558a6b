// How much memory a run takes, by kind, and what other settings would take: computed from the placed programs, to the
// byte.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/program_set.h"

namespace convoy {

struct MemoryLine {
  std::string kind;
  std::size_t bytes;
  bool host = false;  // beside the device's memory
};

struct MemoryReport {
  std::vector<MemoryLine> lines;  // weights, gradients, master weights, moments, activations, workspace, data
  std::size_t total = 0;          // of the device's memory
  std::size_t host_total = 0;     // of the host's, where the device has its own
  std::size_t activation_lower_bound = 0;
};
MemoryReport memory_report(const ArenaSizes& sizes, std::size_t activation_lower_bound);
// Memory beside the arenas: of communication, or of a checkpoint that is written beside training. `host`: not the
// device's.
void add_line(MemoryReport& report, const std::string& kind, std::size_t bytes, bool host);

// Another setting that leaves the global batch and the result (up to precision and rounding) as they are.
struct Alternative {
  std::string settings;  // as flags: "--recompute selective"
  std::size_t total = 0;
  std::size_t host_total = 0;  // where the device has its own memory
  double extra_flops = 0;      // relative to now: 0.33 = a third more
};
// Combinations of recomputation, smaller micro-batches, sequential accumulation, offload and 16-bit weights that no
// other beats in bytes of the device and of the host, arithmetic and number of changes at once; the largest first. Only
// those that take less than now.
// `beside` tells the bytes outside the arenas of a run with such programs.
using BytesBeside = std::function<std::size_t(const TrainShape&, const ProgramSet&)>;
std::vector<Alternative> alternatives(const Model& model, const TrainShape& shape, const WorkspaceSizes& workspaces,
                                      const BytesBeside& beside = {});

// Bytes that this process may take: the least of the machine's available memory and its control group's limit.
std::size_t available_memory();

std::string print(const MemoryReport& report);
std::string print(const std::vector<Alternative>& alternatives, std::size_t now);

// What a rank may take of the device's memory, and of the host's where that is another.
struct MemoryLimit {
  std::size_t device = 0;
  std::size_t host = SIZE_MAX;
};
// Throws a does-not-fit error with the alternatives that fit when a total is above its limit.
void require_fit(const Model& model, const TrainShape& shape, const WorkspaceSizes& workspaces,
                 const MemoryReport& report, const MemoryLimit& limit, const BytesBeside& beside = {});

}  // namespace convoy
