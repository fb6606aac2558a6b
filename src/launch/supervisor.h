// Starts the ranks of this machine as processes and looks after them: one output, one exit status, no orphans.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/attempt.h"

namespace convoy {

struct SupervisorOptions {
  std::string program;                 // the executable of a worker
  int ranks = 1;                       // to start here
  int first_rank = 0, world_size = 0;  // of the whole job; world_size 0: the ranks here are all
  int node = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 0;     // 0: a free one
  std::string job, token;  // empty: drawn anew for each attempt
  int first_restart = 0;   // how often a launcher above has started the job again
  int max_restarts = 0;
  int least_ranks = 0;            // elastic: a restart may have so few; 0: always as many
  double grace_seconds = 5;       // from the end of one rank until the others are killed
  std::filesystem::path log_dir;  // one file per rank; empty: none
  std::vector<std::pair<std::string, std::string>> environment;  // for the ranks, beside what this process has
  int control = -1;                                              // see Attempt::Options
  std::function<std::int64_t()> count_memory_kills = out_of_memory_kills;
};

// The words after the program's name for an attempt with so many ranks; nothing if there cannot be one. `restart` is 0
// for the first.
using WorkerWords = std::function<std::optional<std::vector<std::string>>(int restart, int ranks)>;

// Runs the job to its end and returns its exit status: 0; that of the rank that failed first by itself (128 + signal
// where one killed it), with its error as the last line on stderr; or 128 + signal after a signal that was passed on.
//
// The first rank's output passes through as it is; the others' lines on stderr get "[rank 2] " before them, and what
// they print is left out. SIGINT and SIGTERM are passed on once, SIGHUP and SIGUSR1 as SIGTERM; a second SIGINT,
// SIGTERM or SIGHUP ends the ranks at once.
int supervise(const SupervisorOptions& options, const WorkerWords& words);

// The same for any processes: `starts` gives those of an attempt.
struct RestartPolicy {
  int count = 1;        // of processes
  int least_count = 0;  // elastic; 0: always as many
  int max_restarts = 0;
};
using AttemptStarts = std::function<std::optional<std::vector<WorkerProcess::Start>>(int restart, int count)>;
int run_with_restarts(const RestartPolicy& policy, const Attempt::Options& options, const AttemptStarts& starts);

// 128 random bits in hexadecimal digits.
std::string random_word();
// A TCP port of this machine that nobody uses.
int free_port();
bool is_free_port(int port);

}  // namespace convoy
