// Starts the ranks of this machine as processes and looks after them: one output, one exit status, no orphans.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace convoy {

struct SupervisorOptions {
  std::string program;                 // the executable of a worker
  int ranks = 1;                       // to start here
  int first_rank = 0, world_size = 0;  // of the whole job; world_size 0: the ranks here are all
  int node = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 0;  // 0: a free one
  std::string job, token;  // empty: drawn anew for each attempt
  int max_restarts = 0;
  int least_ranks = 0;         // elastic: a restart may have so few; 0: always as many
  double grace_seconds = 5;    // from the end of one rank until the others are killed
  std::filesystem::path log_dir;  // one file per rank; empty: none
};

// The words after the program's name for an attempt with so many ranks; nothing if there cannot be one. `restart` is 0
// for the first.
using WorkerWords = std::function<std::optional<std::vector<std::string>>(int restart, int ranks)>;

// Runs the job to its end and returns its exit status: 0; that of the rank that failed first by itself (128 + signal
// where one killed it), with its error as the last line on stderr; or 128 + signal after a signal that was passed on.
//
// The first rank's output passes through as it is; the others' lines on stderr get "[rank 2] " before them, and what
// they print is left out. SIGINT, SIGTERM and SIGHUP are passed on once; a second one ends the ranks at once.
int supervise(const SupervisorOptions& options, const WorkerWords& words);

}  // namespace convoy
