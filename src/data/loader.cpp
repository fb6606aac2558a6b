#include "data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "base/error.h"
#include "data/batch.h"

namespace convoy {
namespace {

void check_options(const RowOptions& rows, const LoaderOptions& options) {
  const auto need = [](bool condition, const std::string& what) {
    if (!condition) throw usage_error(what);
  };
  need(options.rows > 0, fmt::format("{} rows per micro-batch are not positive", options.rows));
  need(options.accumulation > 0, fmt::format("{} micro-batches per step are not positive", options.accumulation));
  need(options.world > 0, fmt::format("a world of {} ranks is not positive", options.world));
  need(options.rank >= 0 && options.rank < options.world,
       fmt::format("rank {} is not in a world of {}", options.rank, options.world));
  need(options.epochs >= 0, fmt::format("{} epochs are negative", options.epochs));
  need(options.prefetch >= 0, fmt::format("{} steps ahead are negative", options.prefetch));
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (options.rows > kMost / rows.row_length) {
    throw usage_error(
        fmt::format("a micro-batch of {} rows of {} tokens has 2^31 tokens or more", options.rows, rows.row_length))
        .mend("use fewer rows per micro-batch and more accumulation");
  }
}

// The micro-batches of a step, of all ranks: rows [begins[m], begins[m + 1]) of the plan.
struct RowStep {
  std::size_t bucket = 0;
  std::vector<std::int64_t> begins;
};

// What an epoch's steps are made of.
struct EpochPlan {
  RowPlan rows;
  std::vector<RowStep> steps;  // with buckets; else they follow from the number of rows
};

// Rows are as long as their bucket's.
void report_bucketed(const EpochPlan& plan, const BucketRows& buckets, DataReport& report) {
  std::int64_t tokens = 0;
  for (const RowStep& step : plan.steps)
    tokens += (step.begins.back() - step.begins.front()) * buckets.row_length[step.bucket];
  report.fill_ratio = tokens == 0 ? 0.0 : static_cast<double>(report.row_tokens) / static_cast<double>(tokens);
}

}  // namespace

// Makes the rows of an epoch; keeps the last plan, since epochs come one after the other. Used by two threads.
class Loader::Planner {
 public:
  Planner(std::shared_ptr<const TokenData> data, const std::vector<DocumentId>& documents, const RowOptions& rows,
          const LoaderOptions& options)
      : data_(std::move(data)), rows_(rows), options_(options), report_(data_->report()) {
    documents_ = usable_documents(*data_, documents, rows_, report_);
    check_options(rows_, options_);
    if (!options_.buckets) return;
    check(rows_.mode == RowMode::kPad && rows_.parts == 0, "buckets are for rows of one document");
    check(options_.buckets->row_length.size() == options_.buckets->shapes.size(), "buckets of another number");
    std::vector<std::int64_t> lengths;
    for (const DocumentId document : documents_)
      lengths.push_back(options_.buckets->lengths.at(static_cast<std::size_t>(document)));
    BucketOptions dealing;
    dealing.accumulation = options_.bucket_group > 0 ? options_.bucket_group : micro_batches();
    dealing.seed = options_.seed;
    dealing.shuffle = options_.shuffle;
    buckets_.emplace(lengths, options_.buckets->shapes, dealing);
  }

  std::shared_ptr<const EpochPlan> plan(std::int64_t epoch) {
    const std::lock_guard guard(lock_);
    if (plan_ != nullptr && planned_ == epoch) return plan_;
    plan_ = make(epoch);
    planned_ = epoch;
    return plan_;
  }

  std::int64_t rows_in(std::int64_t epoch) { return counts(epoch).rows; }
  std::int64_t steps_in(std::int64_t epoch) {
    const std::vector<std::int64_t>& each = counts(epoch).steps;
    return std::accumulate(each.begin(), each.end(), std::int64_t{0});
  }
  std::vector<std::int64_t> steps_of_buckets(std::int64_t epoch) { return counts(epoch).steps; }

  // The step that begins at a row, or none where the epoch ends before it would be one.
  std::optional<RowStep> step_at(const EpochPlan& plan, std::int64_t row) const {
    if (buckets_) {
      const auto found = std::lower_bound(plan.steps.begin(), plan.steps.end(), row,
                                          [](const RowStep& step, std::int64_t at) { return step.begins[0] < at; });
      return found == plan.steps.end() ? std::nullopt : std::optional(*found);
    }
    const std::int64_t rows = plan.rows.rows();
    if (row + (options_.drop_last ? options_.rows_per_step() : 1) > rows) return std::nullopt;
    RowStep step;
    for (std::int64_t m = 0; m <= micro_batches(); ++m) step.begins.push_back(std::min(row + m * options_.rows, rows));
    return step;
  }
  BatchRows micro_batch(const RowStep& step, std::int64_t m) const {
    const auto at = static_cast<std::size_t>(m);
    BatchRows which{step.begins[at], step.begins[at + 1], options_.rows, rows_.row_length};
    if (!buckets_) return which;
    which.rows = buckets_->shapes()[step.bucket].rows;
    which.length = options_.buckets->row_length[step.bucket];
    return which;
  }
  bool has_buckets() const { return buckets_.has_value(); }

  const TokenData& data() const { return *data_; }
  const LoaderOptions& options() const { return options_; }
  std::int64_t samples() const { return static_cast<std::int64_t>(documents_.size()); }
  DataReport& report() { return report_; }

 private:
  struct Counts {
    std::int64_t rows = 0;
    std::vector<std::int64_t> steps;  // of each bucket
  };
  std::int64_t micro_batches() const { return options_.accumulation * options_.world; }

  const Counts& counts(std::int64_t epoch) {
    const std::lock_guard guard(lock_);
    // Only packing depends on the order of the documents.
    const std::int64_t like = rows_.mode == RowMode::kPack && options_.shuffle ? epoch : 0;
    auto known = counts_.find(like);
    if (known == counts_.end()) {
      const bool at_hand = plan_ != nullptr && planned_ == like;
      known = counts_.emplace(like, count(at_hand ? *plan_ : *make(like))).first;
    }
    return known->second;
  }

  Counts count(const EpochPlan& plan) const {
    const std::int64_t rows = plan.rows.rows(), each = options_.rows_per_step();
    if (!buckets_) return {rows, {options_.drop_last ? rows / each : (rows + each - 1) / each}};
    Counts counts{0, std::vector<std::int64_t>(buckets_->shapes().size(), 0)};
    for (const RowStep& step : plan.steps) {
      ++counts.steps[step.bucket];
      counts.rows = step.begins.back();
    }
    return counts;
  }

  std::shared_ptr<const EpochPlan> make(std::int64_t epoch) const {
    if (buckets_) return std::make_shared<const EpochPlan>(make_bucketed(epoch));
    if (!options_.shuffle)
      return std::make_shared<const EpochPlan>(EpochPlan{plan_rows(*data_, documents_, rows_), {}});
    const RowPlan plan = plan_rows(*data_, epoch_order(documents_, options_.seed, epoch), rows_);
    return std::make_shared<const EpochPlan>(EpochPlan{shuffle_rows(plan, options_.seed, epoch), {}});
  }

  EpochPlan make_bucketed(std::int64_t epoch) const {
    EpochPlan made;
    std::vector<DocumentId> order;
    const auto whole = static_cast<std::size_t>(micro_batches());
    for (const BucketStep& dealt : buckets_->plan(epoch).steps) {
      const bool full = std::all_of(dealt.micro_batches.begin(), dealt.micro_batches.end(), [&](const auto& batch) {
        return static_cast<std::int64_t>(batch.size()) == buckets_->shapes()[dealt.bucket].rows;
      });
      if (options_.drop_last && !full) continue;
      // Groups smaller than a step share one, where they are of one bucket.
      const bool shares = !made.steps.empty() && made.steps.back().bucket == dealt.bucket &&
                          made.steps.back().begins.size() + dealt.micro_batches.size() <= whole + 1;
      if (!shares) made.steps.push_back({dealt.bucket, {static_cast<std::int64_t>(order.size())}});
      for (const std::vector<std::int64_t>& batch : dealt.micro_batches) {
        for (const std::int64_t sample : batch) order.push_back(documents_[static_cast<std::size_t>(sample)]);
        made.steps.back().begins.push_back(static_cast<std::int64_t>(order.size()));
      }
    }
    for (RowStep& step : made.steps) step.begins.resize(whole + 1, step.begins.back());
    made.rows = plan_rows(*data_, order, rows_);
    check(made.rows.rows() == static_cast<std::int64_t>(order.size()), "a document that fills several rows");
    return made;
  }

  std::shared_ptr<const TokenData> data_;
  RowOptions rows_;
  LoaderOptions options_;
  DataReport report_;
  std::vector<DocumentId> documents_;
  std::optional<DurationBuckets> buckets_;  // the samples are places in documents_
  std::mutex lock_;
  std::shared_ptr<const EpochPlan> plan_;
  std::int64_t planned_ = -1;
  std::map<std::int64_t, Counts> counts_;
};

// Makes one step after the other from a cursor. Used by one thread at a time.
class Loader::Maker {
 public:
  Maker(Planner& planner, const Cursor& start) : planner_(planner), cursor_(start) {}

  std::optional<Step> next() {
    const LoaderOptions& options = planner_.options();
    if (done(cursor_)) return std::nullopt;
    if (plan_ == nullptr || planned_ != cursor_.epoch) {
      plan_ = planner_.plan(cursor_.epoch);
      planned_ = cursor_.epoch;
    }
    const std::optional<RowStep> rows = planner_.step_at(*plan_, cursor_.next_row);
    // A run that was stopped with other batches may stand where no whole step is left.
    if (!rows) {
      if (cursor_.next_row == 0) {
        throw usage_error(fmt::format("epoch {} has {} rows, fewer than the {} of a step", cursor_.epoch,
                                      plan_->rows.rows(), options.rows_per_step()))
            .mend("turn drop_last off or use a smaller batch");
      }
      next_epoch();
      return next();
    }
    Step step;
    step.epoch = cursor_.epoch;
    step.index = index_of(*rows);
    step.first_micro_batch = options.micro_batch(0);
    count(*rows, step);
    for (std::int64_t i = 0; i < options.accumulation; ++i) {
      step.micro_batches.push_back(make_batch(planner_.data(), plan_->rows, cursor_.epoch,
                                              planner_.micro_batch(*rows, options.micro_batch(i)), options.pad_id));
      if (planner_.has_buckets()) step.micro_batches.back().bucket = static_cast<std::int32_t>(rows->bucket);
      if (options.complete) options.complete(step.micro_batches.back());
    }
    cursor_.next_row = planner_.has_buckets() ? rows->begins.back() : cursor_.next_row + options.rows_per_step();
    cursor_.seen_samples += step.global_samples;
    if (!planner_.step_at(*plan_, cursor_.next_row)) {
      step.ends_epoch = true;
      next_epoch();
    }
    step.next = cursor_;
    return step;
  }

 private:
  bool done(const Cursor& cursor) const {
    return planner_.options().epochs > 0 && cursor.epoch >= planner_.options().epochs;
  }
  std::int64_t index_of(const RowStep& rows) const {
    if (!planner_.has_buckets()) return cursor_.next_row / planner_.options().rows_per_step();
    const auto before = [](const RowStep& step, std::int64_t at) { return step.begins[0] < at; };
    return std::lower_bound(plan_->steps.begin(), plan_->steps.end(), rows.begins[0], before) - plan_->steps.begin();
  }
  void next_epoch() {
    ++cursor_.epoch;
    cursor_.next_row = 0;
  }
  void count(const RowStep& rows, Step& step) const {
    for (auto r = static_cast<std::size_t>(rows.begins.front()); r < static_cast<std::size_t>(rows.begins.back());
         ++r) {
      step.global_targets += plan_->rows.row_targets[r];
      step.global_tokens += plan_->rows.row_tokens[r];
      step.global_samples += plan_->rows.row_samples[r];
    }
  }

  Planner& planner_;
  Cursor cursor_;
  std::shared_ptr<const EpochPlan> plan_;
  std::int64_t planned_ = -1;
};

// A thread that keeps a few steps ready.
class Loader::Prefetcher {
 public:
  Prefetcher(Maker& maker, std::int64_t depth) : maker_(maker), depth_(static_cast<std::size_t>(depth)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Prefetcher() {
    {
      const std::lock_guard guard(lock_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  std::optional<Step> next() {
    std::unique_lock guard(lock_);
    changed_.wait(guard, [&] { return !ready_.empty() || finished_; });
    if (!ready_.empty()) {
      Step step = std::move(ready_.front());
      ready_.pop_front();
      guard.unlock();
      changed_.notify_all();
      return step;
    }
    if (failure_) std::rethrow_exception(failure_);
    return std::nullopt;
  }

 private:
  void run() {
    try {
      while (true) {
        std::optional<Step> step = maker_.next();
        std::unique_lock guard(lock_);
        if (!step) break;
        changed_.wait(guard, [&] { return ready_.size() < depth_ || stopping_; });
        if (stopping_) return;
        ready_.push_back(std::move(*step));
        guard.unlock();
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard guard(lock_);
      failure_ = std::current_exception();
    }
    {
      const std::lock_guard guard(lock_);
      finished_ = true;
    }
    changed_.notify_all();
  }

  Maker& maker_;
  std::size_t depth_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<Step> ready_;
  std::exception_ptr failure_;
  bool finished_ = false, stopping_ = false;
  std::thread thread_;
};

std::int64_t LoaderOptions::micro_batch(std::int64_t index) const {
  const std::int64_t turn = period > 0 ? period : accumulation;
  return (index / turn * world + rank) * turn + index % turn;
}

LoaderOptions evaluation_options(LoaderOptions options) {
  options.shuffle = false;
  options.drop_last = false;
  options.epochs = 1;
  options.bucket_group = 1;  // which micro-batches there are does not depend on the ranks
  return options;
}

Loader::Loader(std::shared_ptr<const TokenData> data, const std::vector<DocumentId>& documents, const RowOptions& rows,
               const LoaderOptions& options, const Cursor& start)
    : planner_(std::make_unique<Planner>(std::move(data), documents, rows, options)) {
  if (start.epoch < 0 || start.next_row < 0 || start.seen_samples < 0)
    throw usage_error("the position in the data to resume from is negative");
  const std::shared_ptr<const EpochPlan> epoch = planner_->plan(start.epoch);
  const RowPlan* plan = &epoch->rows;
  report_rows(*plan, planner_->report());
  if (options.buckets) report_bucketed(*epoch, *options.buckets, planner_->report());
  if (options.drop_last) {
    planner_->report().dropped_rows =
        options.buckets ? planner_->samples() - plan->rows() : plan->rows() % options.rows_per_step();
  }
  if (plan->rows() == 0 && (!options.buckets || planner_->samples() == 0)) {
    throw data_error(fmt::format("no sample is left to make a batch of: {}", planner_->report().text()))
        .mend("look at what was left out and why");
  }
  if (options.drop_last && !planner_->step_at(*epoch, 0)) {
    throw usage_error(fmt::format("the data make {} rows, but a step takes {} and incomplete steps are dropped",
                                  plan->rows(), options.rows_per_step()))
        .mend("turn drop_last off, use a smaller batch or shorter rows");
  }
  if (start.next_row > plan->rows() + options.rows_per_step()) {
    throw usage_error(fmt::format("the run to resume stood at row {} of epoch {}, which has {} rows", start.next_row,
                                  start.epoch, plan->rows()))
        .mend("resume with the data, row length and seed that the run was started with");
  }
  const std::optional<RowStep> first = planner_->step_at(*epoch, start.next_row);
  if (options.buckets && first && first->begins[0] != start.next_row) {
    throw usage_error(
        fmt::format("the run to resume stood at row {} of epoch {}, where no step begins", start.next_row, start.epoch))
        .mend("resume with the buckets and the global batch that the run was started with");
  }
  maker_ = std::make_unique<Maker>(*planner_, start);
  if (options.prefetch > 0) prefetcher_ = std::make_unique<Prefetcher>(*maker_, options.prefetch);
}

Loader::~Loader() = default;

std::optional<Step> Loader::next() {
  return prefetcher_ ? prefetcher_->next() : maker_->next();
}
std::int64_t Loader::steps_in_epoch(std::int64_t epoch) {
  return planner_->steps_in(epoch);
}
std::int64_t Loader::rows_in_epoch(std::int64_t epoch) {
  return planner_->rows_in(epoch);
}
std::vector<std::int64_t> Loader::steps_of_buckets(std::int64_t epoch) {
  return planner_->steps_of_buckets(epoch);
}
std::int64_t Loader::total_steps(std::int64_t epochs) {
  std::int64_t steps = 0;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) steps += planner_->steps_in(epoch);
  return steps;
}
std::int64_t Loader::samples_per_epoch() const {
  return planner_->samples();
}
const DataReport& Loader::report() const {
  return planner_->report();
}

}  // namespace convoy
