// Runs programs: the first of the three interpreters.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "runtime/arenas.h"
#include "runtime/trace.h"

namespace convoy {

// A program prepared on a device, bound to arenas.
class Executor {
 public:
  // Checks that every operand lies inside its arena. `communicator` is needed for programs of several ranks only.
  Executor(Device& device, const Program& program, const Arenas& arenas, Communicator* communicator = nullptr);

  // Runs all instructions, with the gradients of one slot.
  void run(std::size_t gradient_slot = 0);

  const Program& program() const { return program_; }
  // The end of the furthest operand in each role's arena that the instructions touch: the high-water mark.
  std::size_t high_water(Role role) const { return high_water_[static_cast<std::size_t>(role)]; }
  std::size_t workspace_high_water() const { return workspace_high_water_; }

  // Where the time goes: communication and copies to and from the host apart from the phase that they are in.
  struct Timing {
    double forward = 0, backward = 0, recompute = 0, update = 0, waiting = 0;
  };
  // Both for the runs from now on; null and false switch them off.
  void set_trace(Trace* trace) { trace_ = trace; }
  void set_timing(bool on) { timing_on_ = on; }
  // What was spent since the last call.
  Timing take_timing() { return std::exchange(timing_, {}); }

  // Seconds spent per operation name since profiling was switched on.
  void set_profiling(bool on) { profiling_ = on; }
  const std::map<std::string, double>& profile() const { return profile_; }

 private:
  struct Step {
    std::unique_ptr<Kernel> kernel;
    std::vector<std::byte*> inputs, outputs;
  };
  void bind(std::size_t gradient_slot);
  bool observed() const { return profiling_ || timing_on_ || trace_ != nullptr; }
  void run_steps();
  void run_observed(std::size_t index);

  Device& device_;
  const Program& program_;
  const Arenas& arenas_;
  Communicator* communicator_;
  std::vector<Step> steps_;
  std::size_t bound_slot_ = SIZE_MAX;
  // By gradient slot and variant; null after a first run, which is never recorded: libraries load what they need then.
  std::map<std::pair<std::size_t, int>, std::unique_ptr<Recording>> recordings_;
  bool has_collectives_ = false;
  bool recordable_ = true;  // until the device declines
  std::array<std::size_t, kRoleCount> high_water_{};
  std::size_t workspace_high_water_ = 0;
  bool profiling_ = false;
  Trace* trace_ = nullptr;
  bool timing_on_ = false;
  Timing timing_;
  std::map<std::string, double> profile_;
};

}  // namespace convoy
