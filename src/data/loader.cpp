#include "data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
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

}  // namespace

// Makes the rows of an epoch; keeps the last plan, since epochs come one after the other. Used by two threads.
class Loader::Planner {
 public:
  Planner(std::shared_ptr<const TokenData> data, const std::vector<DocumentId>& documents, const RowOptions& rows,
          const LoaderOptions& options)
      : data_(std::move(data)), rows_(rows), options_(options), report_(data_->report()) {
    documents_ = usable_documents(*data_, documents, rows_, report_);
    check_options(rows_, options_);
  }

  std::shared_ptr<const RowPlan> plan(std::int64_t epoch) {
    const std::lock_guard guard(lock_);
    if (plan_ != nullptr && planned_ == epoch) return plan_;
    plan_ = make(epoch);
    planned_ = epoch;
    return plan_;
  }

  std::int64_t rows_in(std::int64_t epoch) {
    const std::lock_guard guard(lock_);
    // Only packing depends on the order of the documents.
    const std::int64_t like = rows_.mode == RowMode::kPack && options_.shuffle ? epoch : 0;
    auto known = row_counts_.find(like);
    if (known == row_counts_.end()) {
      const bool at_hand = plan_ != nullptr && planned_ == like;
      known = row_counts_.emplace(like, at_hand ? plan_->rows() : make(like)->rows()).first;
    }
    return known->second;
  }

  std::int64_t steps_in(std::int64_t epoch) {
    const std::int64_t rows = rows_in(epoch);
    const std::int64_t each = options_.rows_per_step();
    return options_.drop_last ? rows / each : (rows + each - 1) / each;
  }

  const TokenData& data() const { return *data_; }
  const LoaderOptions& options() const { return options_; }
  std::int64_t samples() const { return static_cast<std::int64_t>(documents_.size()); }
  DataReport& report() { return report_; }

 private:
  std::shared_ptr<const RowPlan> make(std::int64_t epoch) const {
    if (!options_.shuffle) return std::make_shared<const RowPlan>(plan_rows(*data_, documents_, rows_));
    const RowPlan plan = plan_rows(*data_, epoch_order(documents_, options_.seed, epoch), rows_);
    return std::make_shared<const RowPlan>(shuffle_rows(plan, options_.seed, epoch));
  }

  std::shared_ptr<const TokenData> data_;
  RowOptions rows_;
  LoaderOptions options_;
  DataReport report_;
  std::vector<DocumentId> documents_;
  std::mutex lock_;
  std::shared_ptr<const RowPlan> plan_;
  std::int64_t planned_ = -1;
  std::map<std::int64_t, std::int64_t> row_counts_;
};

// Makes one step after the other from a cursor. Used by one thread at a time.
class Loader::Maker {
 public:
  Maker(Planner& planner, const Cursor& start) : planner_(planner), cursor_(start) {}

  std::optional<Step> next() {
    const LoaderOptions& options = planner_.options();
    const std::int64_t each = options.rows_per_step();
    if (done(cursor_)) return std::nullopt;
    if (plan_ == nullptr || planned_ != cursor_.epoch) {
      plan_ = planner_.plan(cursor_.epoch);
      planned_ = cursor_.epoch;
    }
    // A run that was stopped with other batches may stand where no whole step is left.
    if (!has_step(cursor_.next_row)) {
      if (cursor_.next_row == 0) {
        throw usage_error(
            fmt::format("epoch {} has {} rows, fewer than the {} of a step", cursor_.epoch, plan_->rows(), each))
            .mend("turn drop_last off or use a smaller batch");
      }
      next_epoch();
      return next();
    }
    Step step;
    step.epoch = cursor_.epoch;
    step.index = cursor_.next_row / each;
    step.first_micro_batch = options.micro_batch(0);
    count(step);
    for (std::int64_t i = 0; i < options.accumulation; ++i) {
      const std::int64_t first_row = cursor_.next_row + options.micro_batch(i) * options.rows;
      step.micro_batches.push_back(
          make_batch(planner_.data(), *plan_, cursor_.epoch, first_row, options.rows, options.pad_id));
      if (options.complete) options.complete(step.micro_batches.back());
    }
    cursor_.next_row += each;
    cursor_.seen_samples += step.global_samples;
    if (!has_step(cursor_.next_row)) {
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
  bool has_step(std::int64_t row) const {
    return row + (planner_.options().drop_last ? planner_.options().rows_per_step() : 1) <= plan_->rows();
  }
  void next_epoch() {
    ++cursor_.epoch;
    cursor_.next_row = 0;
  }
  void count(Step& step) const {
    const std::int64_t end = std::min(plan_->rows(), cursor_.next_row + planner_.options().rows_per_step());
    for (auto r = static_cast<std::size_t>(cursor_.next_row); r < static_cast<std::size_t>(end); ++r) {
      step.global_targets += plan_->row_targets[r];
      step.global_tokens += plan_->row_tokens[r];
      step.global_samples += plan_->row_samples[r];
    }
  }

  Planner& planner_;
  Cursor cursor_;
  std::shared_ptr<const RowPlan> plan_;
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
  return options;
}

Loader::Loader(std::shared_ptr<const TokenData> data, const std::vector<DocumentId>& documents, const RowOptions& rows,
               const LoaderOptions& options, const Cursor& start)
    : planner_(std::make_unique<Planner>(std::move(data), documents, rows, options)) {
  if (start.epoch < 0 || start.next_row < 0 || start.seen_samples < 0)
    throw usage_error("the position in the data to resume from is negative");
  const std::shared_ptr<const RowPlan> plan = planner_->plan(start.epoch);
  report_rows(*plan, planner_->report());
  if (options.drop_last) planner_->report().dropped_rows = plan->rows() % options.rows_per_step();
  if (plan->rows() == 0) {
    throw data_error(fmt::format("no sample is left to make a batch of: {}", planner_->report().text()))
        .mend("look at what was left out and why");
  }
  if (options.drop_last && plan->rows() < options.rows_per_step()) {
    throw usage_error(fmt::format("the data make {} rows, but a step takes {} and incomplete steps are dropped",
                                  plan->rows(), options.rows_per_step()))
        .mend("turn drop_last off, use a smaller batch or shorter rows");
  }
  if (start.next_row > plan->rows() + options.rows_per_step()) {
    throw usage_error(fmt::format("the run to resume stood at row {} of epoch {}, which has {} rows", start.next_row,
                                  start.epoch, plan->rows()))
        .mend("resume with the data, row length and seed that the run was started with");
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
