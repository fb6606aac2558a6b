// One attempt at a job: its processes from their start to their end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/merged_output.h"
#include "launch/signal_descriptor.h"
#include "launch/worker_process.h"

namespace convoy {

struct Outcome {
  int status = 0;         // 0, or that of the process that failed by itself, or 128 + signal
  int asked_to_stop = 0;  // the signal that came from outside, if one did and the processes followed it
  std::string reason;     // of a failure
};

// How often the kernel has killed a process of this control group for want of memory.
std::int64_t out_of_memory_kills();

class Attempt {
 public:
  struct Options {
    double grace_seconds = 5;  // from the end of one process until the others are killed
    // A descriptor with lines from a launcher elsewhere: "signal N", or "end" because another host failed. Its end
    // means that the launcher is gone. -1: none.
    int control = -1;
    std::function<std::int64_t()> count_memory_kills = out_of_memory_kills;
  };
  Attempt(Options options, const SignalDescriptor& signals, const std::vector<WorkerProcess::Start>& starts);
  Outcome run();

 private:
  bool anyone_runs() const;
  void wait_for_something();
  void answer_signals();
  void read_control();
  void answer(int number);
  void collect();
  void end_the_others(bool ask);
  bool was_asked(const WorkerProcess& worker) const;
  const WorkerProcess* culprit() const;
  std::string reason_of(const WorkerProcess& worker) const;
  Outcome outcome() const;

  Options options_;
  const SignalDescriptor& signals_;
  std::int64_t kills_before_;
  MergedOutput screen_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  std::vector<const WorkerProcess*> ended_badly_;  // in the order of their ends
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::string control_text_;
  int stop_signal_ = 0;
  bool early_warning_ = false;  // SIGUSR1 came
  bool asked_ = false;          // whether the others were asked to end
  bool killed_ = false;         // whoever ends from now on ends by our hand
};

}  // namespace convoy
