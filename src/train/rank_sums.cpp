#include "train/rank_sums.h"

#include <algorithm>

#include "base/error.h"

namespace convoy {
namespace {

constexpr std::size_t kReportNumbers = 3;
constexpr std::size_t kTotalNumbers = 5;

std::vector<double> gathered(Communicator* communicator, const std::vector<double>& mine) {
  if (communicator == nullptr || communicator->size() == 1) return mine;
  const auto length = static_cast<std::int64_t>(mine.size());
  std::vector<double> all(mine.size() * static_cast<std::size_t>(communicator->size()));
  const GatherPiece piece{reinterpret_cast<const std::byte*>(mine.data()),
                          reinterpret_cast<std::byte*>(all.data()),
                          {length * communicator->size(), length}};
  communicator->all_gather(DType::kF64, std::span(&piece, 1));
  return all;
}

}  // namespace

StepSums sum_over_ranks(Communicator* communicator, const std::vector<LossTotals>& local, std::int64_t period,
                        const RankReport& report) {
  std::vector<double> mine = {static_cast<double>(report.signal), report.compute_seconds, report.wait_seconds};
  for (const LossTotals& totals : local) {
    mine.insert(mine.end(),
                {totals.loss_sum, totals.targets, totals.correct, totals.auxiliary_sum, totals.auxiliary_targets});
  }
  const std::vector<double> all = gathered(communicator, mine);

  StepSums sums;
  const std::size_t ranks = all.size() / mine.size();
  for (std::size_t r = 0; r < ranks; ++r) {
    const double* numbers = all.data() + r * mine.size();
    sums.signal = std::max(sums.signal, static_cast<int>(numbers[0]));
    if (r == 0 || numbers[1] > sums.slowest_seconds) {
      sums.slowest_seconds = numbers[1];
      sums.slowest_rank = static_cast<int>(r);
    }
    sums.fastest_seconds = r == 0 ? numbers[1] : std::min(sums.fastest_seconds, numbers[1]);
    sums.longest_wait = std::max(sums.longest_wait, numbers[2]);
  }
  const auto turn = static_cast<std::size_t>(std::max<std::int64_t>(period, 1));
  const auto micro_batches = static_cast<double>(local.size() * ranks);
  check(local.size() % turn == 0, "micro-batches are dealt in whole turns");
  for (std::size_t first = 0; first < local.size(); first += turn) {
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = first; i < first + turn; ++i) {
        const double* numbers = all.data() + r * mine.size() + kReportNumbers + i * kTotalNumbers;
        const LossTotals totals{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
        sums.totals += totals;
        sums.mean_of_means += totals.mean() / micro_batches;
        sums.auxiliary_mean_of_means += totals.auxiliary_mean() / micro_batches;
      }
    }
  }
  return sums;
}

std::vector<double> sum_over_ranks(Communicator* communicator, const std::vector<double>& mine) {
  const std::vector<double> all = gathered(communicator, mine);
  std::vector<double> sums(mine.size(), 0.0);
  for (std::size_t i = 0; i < all.size(); ++i) sums[i % mine.size()] += all[i];
  return sums;
}

}  // namespace convoy
