#include "data/duration_buckets.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/random.h"

namespace convoy {
namespace {

enum Stream : std::uint64_t { kSamples = 1, kSteps = 2 };

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// At most `count` lengths, the last one the longest sample's, for which the sum of what pads each sample to the next of
// them is least: dynamic programming over the distinct lengths, of which there are at most kCandidates (then they are
// rounded more).
std::vector<std::int64_t> best_lengths(std::vector<std::int64_t> lengths, std::int64_t multiple, std::int64_t count) {
  constexpr std::size_t kCandidates = 500;
  std::sort(lengths.begin(), lengths.end());
  const std::int64_t coarse =
      multiple * std::max<std::int64_t>(1, lengths.back() / (multiple * static_cast<std::int64_t>(kCandidates)) + 1);
  std::vector<std::int64_t> distinct;
  std::vector<double> samples = {0}, sums = {0};  // of the samples up to a distinct length
  for (const std::int64_t step : {multiple, coarse}) {
    distinct.clear();
    samples.assign(1, 0);
    sums.assign(1, 0);
    const std::int64_t longest = rounded_up(lengths.back(), multiple);
    for (const std::int64_t length : lengths) {
      const std::int64_t padded = std::min(rounded_up(length, step), longest);
      if (distinct.empty() || distinct.back() != padded) {
        distinct.push_back(padded);
        samples.push_back(samples.back());
        sums.push_back(sums.back());
      }
      samples.back() += 1;
      sums.back() += static_cast<double>(length);
    }
    if (distinct.size() <= kCandidates) break;
  }
  const std::size_t n = distinct.size();
  const std::size_t most = std::min<std::size_t>(n, static_cast<std::size_t>(count));
  // cost[k][j]: the least padding of the first j distinct lengths in k buckets.
  std::vector<std::vector<double>> cost(most + 1, std::vector<double>(n + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<std::size_t>> from(most + 1, std::vector<std::size_t>(n + 1));
  cost[0][0] = 0;
  for (std::size_t k = 1; k <= most; ++k) {
    for (std::size_t j = 1; j <= n; ++j) {
      for (std::size_t i = 0; i < j; ++i) {
        const double padding = static_cast<double>(distinct[j - 1]) * (samples[j] - samples[i]) - (sums[j] - sums[i]);
        if (cost[k - 1][i] + padding < cost[k][j]) {
          cost[k][j] = cost[k - 1][i] + padding;
          from[k][j] = i;
        }
      }
    }
  }
  std::size_t buckets = 1;
  for (std::size_t k = 2; k <= most; ++k) {
    if (cost[k][n] < cost[buckets][n]) buckets = k;
  }
  std::vector<std::int64_t> best;
  for (std::size_t k = buckets, j = n; k > 0; j = from[k][j], --k) best.push_back(distinct[j - 1]);
  std::reverse(best.begin(), best.end());
  return best;
}

void check_options(const BucketOptions& options) {
  const auto demand = [](bool holds, std::string what) {
    if (!holds) throw usage_error(std::move(what)).mend("give a positive number");
  };
  demand(options.budget >= 1, fmt::format("the budget of a micro-batch is {}", options.budget));
  demand(options.buckets >= 1 && options.buckets <= 64,
         fmt::format("{} buckets are asked for, not 1 to 64", options.buckets));
  demand(options.multiple >= 1, fmt::format("lengths are to be multiples of {}", options.multiple));
  demand(options.max_rows >= 0 && options.fixed_length >= 0, "max_rows and fixed_length are not negative");
}

void check_group(const BucketOptions& options) {
  if (options.world >= 1 && options.accumulation >= 1) return;
  throw usage_error(fmt::format("{} ranks with {} micro-batches each", options.world, options.accumulation))
      .mend("give a positive number");
}

}  // namespace

double PaddingReport::waste() const {
  return computed == 0 ? 0.0 : 1.0 - static_cast<double>(used) / static_cast<double>(computed);
}

std::string PaddingReport::text() const {
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  return fmt::format(
      "{} samples in {} steps; {:.1f}% of what is computed is padding ({:.1f}% within buckets, {:.1f}% rows without "
      "a sample); one length for all would make it {:.1f}%",
      samples, steps, 100 * waste(), share(padded - used, computed), share(computed - padded, computed),
      share(one_length - used, one_length));
}

DurationBuckets::DurationBuckets(std::span<const std::int64_t> lengths, const BucketOptions& options)
    : lengths_(lengths.begin(), lengths.end()), options_(options) {
  check_options(options);
  check_group(options);
  if (lengths.empty())
    throw data_error("there are no samples to put into batches").mend("check the manifest and the limits");
  const std::int64_t most = options.fixed_length > 0 ? options.fixed_length : options.budget;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0) throw internal_error(fmt::format("sample {} has length {}", i, lengths[i]));
    if (lengths[i] > most) {
      throw data_error(fmt::format("sample {} is {} long, over the {} of {}", i, lengths[i],
                                   options.fixed_length > 0 ? "fixed length" : "budget of a micro-batch", most))
          .mend("raise it, cut the sample, or leave out what is longer (max_seconds)");
    }
  }
  const std::vector<std::int64_t> chosen = options.fixed_length > 0
                                               ? std::vector{options.fixed_length}
                                               : best_lengths(lengths_, options.multiple, options.buckets);
  for (std::int64_t length : chosen) {
    length = std::max<std::int64_t>(length, 1);
    // Rounding up may take the longest bucket over the budget; one row is then what there is.
    std::int64_t rows = std::max<std::int64_t>(1, options.budget / length);
    if (options.max_rows > 0) rows = std::min(rows, options.max_rows);
    shapes_.push_back({length, rows});
  }
}

DurationBuckets::DurationBuckets(std::span<const std::int64_t> lengths, std::vector<BucketShape> shapes,
                                 const BucketOptions& options)
    : lengths_(lengths.begin(), lengths.end()), options_(options), shapes_(std::move(shapes)) {
  check_group(options);
  check(!shapes_.empty(), "no buckets");
  for (std::size_t b = 0; b < shapes_.size(); ++b) {
    check(shapes_[b].rows >= 1 && shapes_[b].length > (b == 0 ? 0 : shapes_[b - 1].length),
          "buckets without rows, or not by rising length");
  }
}

BucketPlan DurationBuckets::plan(std::int64_t epoch, std::span<const std::int64_t> lengths) const {
  check(lengths.size() == lengths_.size(), "lengths of other samples");
  const auto group = static_cast<std::size_t>(options_.world * options_.accumulation);
  const std::size_t n = lengths.size();
  std::vector<std::vector<std::int64_t>> pools(shapes_.size());
  const auto epoch_stream = [&](Stream stream) { return static_cast<std::uint64_t>(epoch) * 4 + stream; };
  std::vector<std::uint64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  if (options_.shuffle) order = permutation(n, options_.seed, epoch_stream(kSamples));
  BucketPlan plan;
  for (const std::uint64_t sample : order) {
    const std::int64_t length = lengths[sample];
    const auto fits =
        std::find_if(shapes_.begin(), shapes_.end(), [&](const BucketShape& s) { return s.length >= length; });
    if (fits == shapes_.end()) {
      throw data_error(
          fmt::format("sample {} is {} long, over the longest bucket of {}", sample, length, shapes_.back().length))
          .mend("leave out what is longer");
    }
    pools[static_cast<std::size_t>(fits - shapes_.begin())].push_back(static_cast<std::int64_t>(sample));
    plan.padding.used += length;
  }

  BucketStep last;  // the one that may be incomplete
  for (std::size_t b = 0; b < shapes_.size(); ++b) {
    std::vector<std::int64_t>& pool = pools[b];
    const std::size_t rows = static_cast<std::size_t>(shapes_[b].rows), whole = std::max<std::size_t>(rows * group, 1);
    const std::size_t over = pool.size() % whole;
    if (b + 1 < shapes_.size()) {
      // The longest go up: they are padded least there.
      std::vector<std::int64_t> by_length = pool;
      std::stable_sort(by_length.begin(), by_length.end(), [&](std::int64_t x, std::int64_t y) {
        return lengths[static_cast<std::size_t>(x)] > lengths[static_cast<std::size_t>(y)];
      });
      std::vector<bool> moved(n);
      for (std::size_t i = 0; i < over; ++i) moved[static_cast<std::size_t>(by_length[i])] = true;
      // Spread over the next pool, not all in one of its batches.
      std::vector<std::int64_t>& next = pools[b + 1];
      const auto goes = [&](std::int64_t sample) { return moved[static_cast<std::size_t>(sample)]; };
      std::copy_if(pool.begin(), pool.end(), std::back_inserter(next), goes);
      std::erase_if(pool, goes);
      if (options_.shuffle && over > 0) {
        std::vector<std::size_t> rank(n);
        for (std::size_t i = 0; i < n; ++i) rank[order[i]] = i;
        std::sort(next.begin(), next.end(), [&](std::int64_t x, std::int64_t y) {
          return rank[static_cast<std::size_t>(x)] < rank[static_cast<std::size_t>(y)];
        });
      }
    }
    std::size_t at = 0;
    for (; at + whole <= pool.size(); at += whole) {
      BucketStep step{b, {}};
      for (std::size_t m = 0; m < group; ++m) {
        const auto begin = pool.begin() + static_cast<std::ptrdiff_t>(at + m * rows);
        step.micro_batches.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(rows));
      }
      plan.steps.push_back(std::move(step));
    }
    if (at == pool.size()) continue;
    // Of the last bucket: what is left, evenly over the micro-batches.
    last.bucket = b;
    const std::size_t left = pool.size() - at;
    for (std::size_t m = 0; m < group; ++m) {
      const std::size_t count = left / group + (m < left % group ? 1 : 0);
      const auto begin = pool.begin() + static_cast<std::ptrdiff_t>(at);
      last.micro_batches.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(count));
      at += count;
    }
  }
  if (options_.shuffle) {
    const std::vector<std::uint64_t> places = permutation(plan.steps.size(), options_.seed, epoch_stream(kSteps));
    std::vector<BucketStep> shuffled(plan.steps.size());
    for (std::size_t i = 0; i < places.size(); ++i) shuffled[i] = std::move(plan.steps[places[i]]);
    plan.steps = std::move(shuffled);
  }
  if (!last.micro_batches.empty()) plan.steps.push_back(std::move(last));

  PaddingReport& report = plan.padding;
  report.samples = static_cast<std::int64_t>(n);
  report.steps = static_cast<std::int64_t>(plan.steps.size());
  report.one_length = report.samples * shapes_.back().length;
  for (const BucketStep& step : plan.steps) {
    const BucketShape& shape = shapes_[step.bucket];
    report.computed += shape.length * shape.rows * static_cast<std::int64_t>(group);
    for (const auto& batch : step.micro_batches)
      report.padded += shape.length * static_cast<std::int64_t>(batch.size());
  }
  return plan;
}

}  // namespace convoy
