#include "audio/feature_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace convoy {

class FeatureLoader::Impl {
 public:
  Impl(std::shared_ptr<const std::vector<Utterance>> utterances, const LogMelConfig& config,
       const BucketOptions& buckets, const FeatureLoaderOptions& options, std::int64_t start_epoch,
       std::int64_t start_step)
      : options_(options),
        maker_(std::move(utterances), config, options.features),
        // With speeds, buckets are chosen for the slowest, so that every epoch's lengths fit.
        buckets_(maker_.longest_frames(), buckets),
        epoch_(start_epoch),
        step_(start_step) {
    const auto demand = [](bool holds, std::string what) {
      if (!holds) throw usage_error(std::move(what));
    };
    demand(options.threads >= 0 && options.threads <= 1024, fmt::format("{} threads are asked for", options.threads));
    demand(options.prefetch >= 0, fmt::format("{} steps are to be made ahead", options.prefetch));
    demand(options.rank >= 0 && options.rank < buckets.world,
           fmt::format("rank {} of {}", options.rank, buckets.world));
    demand(start_epoch >= 0 && start_step >= 0, "the start lies before the first step");
    plan_ = make_plan(epoch_);
    demand(start_step <= static_cast<std::int64_t>(plan_.steps.size()),
           fmt::format("the start is step {} of an epoch of {}", start_step, plan_.steps.size()));
    for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~Impl() {
    {
      const std::lock_guard guard(lock_);
      stop_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::optional<FeatureStep> next() {
    if (broken_) std::rethrow_exception(broken_);
    refill();
    if (queue_.empty()) return std::nullopt;
    std::shared_ptr<Work> work = queue_.front();
    if (threads_.empty()) {
      for (std::size_t job = 0; job < work->jobs.size(); ++job) run(*work, job);
    } else {
      std::unique_lock guard(lock_);
      done_.wait(guard, [&] { return work->finished == work->jobs.size(); });
      queue_.pop_front();
    }
    if (threads_.empty()) queue_.pop_front();
    for (const Outcome& outcome : work->outcomes) {
      if (outcome.failure && !outcome.skip) {
        broken_ = outcome.failure;
        std::rethrow_exception(broken_);
      }
      if (outcome.skip) {
        report_.skip("unreadable", outcome.where, outcome.why);
      } else {
        ++report_.samples;
        if (outcome.silent) report_.skip("silent", outcome.where, "the recording is nothing but silence; it is used");
      }
      ++report_.documents;
    }
    return std::move(work->step);
  }

  BucketPlan make_plan(std::int64_t epoch) const {
    if (buckets_.options().fixed_length > 0 || options_.features.speeds.empty()) return buckets_.plan(epoch);
    return buckets_.plan(epoch, maker_.all_frames(epoch));
  }

  FeatureLoaderOptions options_;
  FeatureMaker maker_;
  DurationBuckets buckets_;
  DataReport report_;

 private:
  struct Job {
    std::size_t batch, row;
    std::int64_t sample;
  };
  struct Outcome {
    std::exception_ptr failure;
    bool skip = false, silent = false;
    std::string where, why;
  };
  struct Work {
    FeatureStep step;
    std::vector<Job> jobs;
    std::vector<Outcome> outcomes;
    std::size_t begun = 0, finished = 0;
  };

  // Queues steps until there are enough.
  void refill() {
    const auto wanted = static_cast<std::size_t>(threads_.empty() ? 1 : options_.prefetch + 1);
    while (queue_.size() < wanted) {
      if (step_ == static_cast<std::int64_t>(plan_.steps.size())) {
        if (options_.epochs > 0 && epoch_ + 1 >= options_.epochs) return;
        plan_ = make_plan(++epoch_);
        step_ = 0;
      }
      if (options_.epochs > 0 && epoch_ >= options_.epochs) return;
      std::shared_ptr<Work> work = make_work();
      {
        const std::lock_guard guard(lock_);
        queue_.push_back(std::move(work));
      }
      wanted_.notify_all();
      ++step_;
    }
  }

  std::shared_ptr<Work> make_work() const {
    const BucketStep& planned = plan_.steps[static_cast<std::size_t>(step_)];
    const BucketShape& shape = buckets_.shapes()[planned.bucket];
    auto work = std::make_shared<Work>();
    FeatureStep& step = work->step;
    step.epoch = epoch_;
    step.index = step_;
    step.ends_epoch = step_ + 1 == static_cast<std::int64_t>(plan_.steps.size());
    const std::int64_t own = buckets_.options().accumulation;
    step.first_micro_batch = options_.rank * own;
    for (std::int64_t m = 0; m < own; ++m) {
      FeatureBatch batch;
      batch.rows = shape.rows;
      batch.bins = maker_.log_mel().config().feature_size;
      batch.frames = shape.length;
      batch.features.assign(static_cast<std::size_t>(batch.rows * batch.bins * batch.frames), 0.0F);
      batch.valid_frames.assign(static_cast<std::size_t>(batch.rows), 0);
      batch.samples.assign(static_cast<std::size_t>(batch.rows), -1);
      const auto& samples = planned.micro_batches[static_cast<std::size_t>(step.first_micro_batch + m)];
      for (std::size_t r = 0; r < samples.size(); ++r)
        work->jobs.push_back({static_cast<std::size_t>(m), r, samples[r]});
      step.micro_batches.push_back(std::move(batch));
    }
    work->outcomes.resize(work->jobs.size());
    return work;
  }

  void run(Work& work, std::size_t index) const {
    const Job& job = work.jobs[index];
    Outcome& outcome = work.outcomes[index];
    try {
      fill(work.step, job, outcome);
    } catch (const Error& failure) {
      outcome.failure = std::current_exception();
      outcome.where = failure.where();
      outcome.why = failure.message();
      outcome.skip =
          options_.skip_bad_audio && (failure.status() == Status::kData || failure.status() == Status::kStorage);
    } catch (...) {
      outcome.failure = std::current_exception();
    }
  }

  void fill(FeatureStep& step, const Job& job, Outcome& outcome) const {
    FeatureBatch& batch = step.micro_batches[job.batch];
    const Features features = maker_.make(job.sample, step.epoch);
    // The duration of the manifest was planned with; a frame more or less is rounding.
    constexpr std::int64_t kSlack = 3;
    if (features.valid_frames > batch.frames + kSlack) {
      const Utterance& said = maker_.utterance(job.sample);
      throw data_error(fmt::format("the recording has {} frames, and its duration of {:.2f} s has room for {}",
                                   features.valid_frames, said.duration, batch.frames))
          .at(said.where)
          .mend("correct the duration in the manifest, or leave it out to have it measured");
    }
    const std::int64_t kept = std::min(features.frames, batch.frames);
    float* row = batch.features.data() + static_cast<std::int64_t>(job.row) * batch.bins * batch.frames;
    for (std::int64_t m = 0; m < batch.bins; ++m) {
      const float* from = features.values.data() + m * features.frames;
      float* to = row + m * batch.frames;
      std::copy_n(from, kept, to);
      std::fill(to + kept, to + batch.frames, features.silence);
    }
    batch.valid_frames[job.row] = std::min(features.valid_frames, batch.frames);
    batch.samples[job.row] = job.sample;
    const float first = features.values.front();
    outcome.silent = options_.features.spec_augment.any() ? false
                                                          : std::all_of(features.values.begin(), features.values.end(),
                                                                        [&](float v) { return v == first; });
    if (outcome.silent) outcome.where = maker_.utterance(job.sample).where;
  }

  void work() {
    std::unique_lock guard(lock_);
    while (true) {
      std::shared_ptr<Work> work;
      wanted_.wait(guard, [&] {
        if (stop_) return true;
        for (const std::shared_ptr<Work>& queued : queue_) {
          if (queued->begun < queued->jobs.size()) {
            work = queued;
            return true;
          }
        }
        return false;
      });
      if (stop_) return;
      const std::size_t job = work->begun++;
      guard.unlock();
      run(*work, job);
      guard.lock();
      if (++work->finished == work->jobs.size()) done_.notify_all();
    }
  }

  std::int64_t epoch_, step_;  // of the next step to be queued
  BucketPlan plan_;            // of epoch_
  std::deque<std::shared_ptr<Work>> queue_;
  std::exception_ptr broken_;
  std::mutex lock_;
  std::condition_variable wanted_, done_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

FeatureLoader::FeatureLoader(std::shared_ptr<const std::vector<Utterance>> utterances, const LogMelConfig& config,
                             const BucketOptions& buckets, const FeatureLoaderOptions& options,
                             std::int64_t start_epoch, std::int64_t start_step)
    : impl_(std::make_unique<Impl>(std::move(utterances), config, buckets, options, start_epoch, start_step)) {}
FeatureLoader::~FeatureLoader() = default;

std::optional<FeatureStep> FeatureLoader::next() {
  return impl_->next();
}
const std::vector<BucketShape>& FeatureLoader::shapes() const {
  return impl_->buckets_.shapes();
}
std::int64_t FeatureLoader::steps_in_epoch(std::int64_t epoch) const {
  return static_cast<std::int64_t>(impl_->make_plan(epoch).steps.size());
}
PaddingReport FeatureLoader::padding(std::int64_t epoch) const {
  return impl_->make_plan(epoch).padding;
}
const DataReport& FeatureLoader::report() const {
  return impl_->report_;
}

}  // namespace convoy
