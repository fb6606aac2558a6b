// What the ranks tell one another after a step or an evaluation: loss totals in the order of the global batch, so that
// their sum has the same bits for any number of ranks.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "train/engine.h"

namespace convoy {

// Numbers of one rank that the others hear of in each step.
struct RankReport {
  int signal = 0;              // that asked this rank to end, or 0
  double compute_seconds = 0;  // of the step, without waiting for others
  double wait_seconds = 0;
};

struct StepSums {
  LossTotals totals;
  double mean_of_means = 0, auxiliary_mean_of_means = 0;  // the mean over the micro-batches of their mean losses
  int signal = 0;                                         // the largest of all ranks
  double slowest_seconds = 0, fastest_seconds = 0, longest_wait = 0;  // over the ranks
  int slowest_rank = 0;
};

// Sums over the micro-batches of all ranks in their order in the global batch. `local`: this rank's, in the order of
// its calls; every rank has as many, dealt `period` at a time. All ranks must call. A null communicator is one rank.
StepSums sum_over_ranks(Communicator* communicator, const std::vector<LossTotals>& local, std::int64_t period,
                        const RankReport& report = {});

// The sum of each number over the ranks, in their order. All ranks must call with as many.
std::vector<double> sum_over_ranks(Communicator* communicator, const std::vector<double>& mine);

}  // namespace convoy
