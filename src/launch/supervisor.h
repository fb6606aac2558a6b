// Starts the ranks of this machine as processes and looks after them: one output, one exit status, no orphans.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/worker_process.h"

namespace convoy {

// What holds for a job wherever its processes run.
struct JobOptions {
  int max_restarts = 0;
  int ranks = 1;            // processes of an attempt
  int least_ranks = 0;      // elastic: a restart may have so few; 0: always as many
  double grace_seconds = 5;  // from the end of one process until the others are killed
};

// The processes of an attempt of so many ranks; nothing if there cannot be one. `restart` is 0 for the first.
using MakeProcesses = std::function<std::optional<std::vector<WorkerProcess::Start>>(int restart, int ranks)>;

// Runs the job to its end and returns its exit status: 0; that of the process that failed first by itself (128 + signal
// where one killed it), with its error as the last line on stderr; or 128 + signal after a signal that was passed on.
//
// SIGINT, SIGTERM and SIGHUP are passed on once; a second one ends the processes at once. Statuses of 128 and above are
// worth a restart.
int run_job(const JobOptions& options, const MakeProcesses& processes);

// The ranks of this machine.
struct SupervisorOptions {
  std::string program;                 // the executable of a worker
  int first_rank = 0, world_size = 0;  // of the whole job; world_size 0: the ranks here are all
  int node = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 0;     // 0: a free one
  std::string job, token;  // empty: drawn anew for each attempt
  std::filesystem::path log_dir;  // one file per rank; empty: none
};

// The words after the program's name for an attempt with so many ranks; nothing if there cannot be one.
using WorkerWords = std::function<std::optional<std::vector<std::string>>(int restart, int ranks)>;

// run_job for local ranks. The first rank's output passes through as it is; the others' lines on stderr get "[rank 2] "
// before them, and what they print is left out.
int supervise(const JobOptions& job, const SupervisorOptions& options, const WorkerWords& words);

int free_port();
std::string random_word();

}  // namespace convoy
