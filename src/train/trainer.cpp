#include "train/trainer.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <csignal>

#include "base/error.h"
#include "base/log.h"
#include "train/evaluation.h"

namespace convoy {
namespace {

constexpr std::int64_t kMostSkippedInARow = 10;
constexpr std::int64_t kTracedSteps = 5;

std::atomic<int> stop_signal = 0;
void remember_signal(int number) {
  stop_signal = number;
}

double watched_value(const std::string& metric, const EvaluationResult& result) {
  if (metric == "eval_accuracy") return result.accuracy;
  if (metric == "eval_perplexity") return std::exp(result.loss);
  for (const auto& [name, value] : result.more) {
    if (name == metric) return value;
  }
  return result.loss;
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

StopSignals::StopSignals() {
  stop_signal = 0;
  struct sigaction action {};
  action.sa_handler = remember_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second signal ends the process at once
  for (int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
}
StopSignals::~StopSignals() {
  for (int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
}
int StopSignals::received() {
  return stop_signal;
}

Trainer::Trainer(Engine& engine, const ModelSource& source, WeightMap weights, MakeLoader training,
                 MakeLoader evaluation, const Schedule& schedule, std::optional<PlateauState> plateau,
                 std::optional<LossScaler> scaler, CheckpointStore& store, TrainerOptions options,
                 TrainingObserver& observer, Communicator* communicator)
    : engine_(engine),
      source_(source),
      weights_(std::move(weights)),
      training_(std::move(training)),
      evaluation_(std::move(evaluation)),
      schedule_(schedule),
      plateau_(std::move(plateau)),
      scaler_(std::move(scaler)),
      store_(store),
      options_(std::move(options)),
      observer_(observer),
      communicator_(communicator),
      saver_(store, communicator) {
  state_.convoy_version = options_.version;
  state_.global_batch_size = options_.rows_per_step;
  state_.seed = engine.shape().seed;
  state_.data_seed = options_.data_seed;
}

void Trainer::resume(const std::filesystem::path& checkpoint) {
  state_ = read_training_state(checkpoint);
  if (state_.global_batch_size != options_.rows_per_step) {
    throw usage_error(fmt::format("the checkpoint was trained with {} rows per step, this run has {}",
                                  state_.global_batch_size, options_.rows_per_step))
        .at(checkpoint.string())
        .mend(fmt::format("per_device_train_batch_size × gradient_accumulation_steps × ranks has to stay; "
                          "train_batch_size: {} instead of gradient_accumulation_steps keeps it",
                          state_.global_batch_size));
  }
  if (state_.data_seed != options_.data_seed) {
    throw usage_error(
        fmt::format("the checkpoint's data order has seed {}, this run's {}", state_.data_seed, options_.data_seed))
        .at(checkpoint.string())
        .mend("keep seed and data_seed");
  }
  if (state_.data.fingerprint != options_.data_fingerprint) {
    throw usage_error(
        "the checkpoint was trained on other data, or on the same data with another tokenizer or row settings")
        .at(checkpoint.string())
        .mend("resume with the files and settings of the run, or start a new one from its weights with --model");
  }
  load_checkpoint(engine_, checkpoint);
  if (plateau_ && state_.plateau) {
    plateau_->restore({state_.plateau->learning_rate, state_.plateau->best, state_.plateau->bad_evaluations,
                       state_.plateau->cooldown});
  }
  if (scaler_ && state_.loss_scale) scaler_->restore(*state_.loss_scale);
  if (state_.best && state_.best->name != options_.best_metric) {
    log_warning("the checkpoint's best model is by {}, this run watches {}: the best is looked for anew",
                state_.best->name, options_.best_metric);
    state_.best.reset();
    state_.best_saved.reset();
    state_.counters.erase("evaluations_without_progress");
  }
  state_.convoy_version = options_.version;
  saved_at_ = state_.step;
}

double Trainer::epoch_position() const {
  const auto rows = static_cast<double>(options_.rows_per_epoch);
  return static_cast<double>(state_.data.epoch) +
         (rows > 0 ? std::min(1.0, static_cast<double>(state_.data.position) / rows) : 0.0);
}

StepResult Trainer::train_step() {
  const Stopwatch watch;
  std::optional<Step> step = loader_->next();
  check(step.has_value(), "the data ended before the run");
  const double loss_scale = scaler_ ? scaler_->scale() : 1.0;
  const auto micro_batches = static_cast<double>(step->micro_batches.size()) * ranks();
  for (const Batch& batch : step->micro_batches) {
    // The gradient of the mean over the whole global batch's targets, however it is cut; or of the mean of micro-batch
    // means.
    const auto share = [&](std::int64_t of_batch, std::int64_t of_step) {
      const auto count =
          static_cast<double>(std::max<std::int64_t>(options_.micro_batch_average ? of_batch : of_step, 1));
      return loss_scale / (options_.micro_batch_average ? count * micro_batches : count);
    };
    const double of_tokens = share(batch.target_count, step->global_targets);
    const double of_items = share(static_cast<std::int64_t>(batch.samples.size()), step->global_samples);
    engine_.start_micro_step(view(batch), has_task() ? of_items : of_tokens, auxiliary_weight() * of_tokens);
  }
  StepResult report;
  report.learning_rate = plateau_ ? plateau_->learning_rate() : schedule_.at(state_.schedule_step);
  const UpdateResult update = engine_.update(report.learning_rate, state_.adam_step + 1, 1.0 / loss_scale);
  const std::vector<LossTotals> parts = engine_.take_losses();  // the update has waited for the device
  const double waited = communicator_ == nullptr ? 0 : communicator_->traffic().seconds_waiting;
  const double wait = waited - std::exchange(waited_, waited);
  const StepSums sums = sum_over_ranks(communicator_, parts, engine_.shape().reduce_period(),
                                       {StopSignals::received(), watch.seconds() - wait, wait});
  signal_ = sums.signal;
  ++state_.step;
  if (update.skipped) {
    ++state_.skipped_steps;
  } else {
    ++state_.adam_step;
    ++state_.schedule_step;
  }
  if (scaler_) {
    report.loss_scale = loss_scale;
    if (const std::string note = scaler_->update(update.skipped); !note.empty()) log_info("{}", note);
    state_.loss_scale = scaler_->state();
  }
  epoch_ended_ = step->ends_epoch;
  state_.data.epoch = step->next.epoch;
  state_.data.position = step->next.next_row;
  state_.data.samples_seen = step->next.seen_samples;
  state_.data.tokens_seen += step->global_tokens;
  report.step = state_.step;
  report.max_steps = options_.max_steps;
  report.epoch = epoch_position();
  report.loss = options_.micro_batch_average ? sums.mean_of_means : sums.totals.mean();
  if (auxiliary_weight() != 0) {
    report.task_loss = report.loss;
    report.auxiliary_loss = options_.micro_batch_average ? sums.auxiliary_mean_of_means : sums.totals.auxiliary_mean();
    report.loss += auxiliary_weight() * *report.auxiliary_loss;
  }
  report.accuracy = sums.totals.targets > 0 ? sums.totals.correct / sums.totals.targets : 0;
  report.slowest_rank = sums.slowest_rank;
  report.slowest_seconds = sums.slowest_seconds;
  report.fastest_seconds = sums.fastest_seconds;
  report.longest_wait = sums.longest_wait;
  report.gradient_norm = update.gradient_norm;
  report.skipped = update.skipped;
  report.tokens = step->global_tokens;
  report.tokens_seen = state_.data.tokens_seen;
  report.skipped_steps = state_.skipped_steps;
  if (options_.timing) report.timing = engine_.take_timing();
  report.seconds = watch.seconds();
  return report;
}

void Trainer::check_numbers(const StepResult& report) {
  if (!report.skipped) {
    skipped_in_a_row_ = 0;
    return;
  }
  if (scaler_ && scaler_->dynamic()) return;  // it ends the run itself, at its smallest scale
  ++skipped_in_a_row_;
  log_warning("step {}: a gradient is not finite (loss {}); the weights stay as they were", report.step, report.loss);
  if (skipped_in_a_row_ < kMostSkippedInARow) return;
  throw numerics_error(fmt::format("{} steps in a row had gradients that are not finite; the last loss was {}",
                                   skipped_in_a_row_, report.loss))
      .at(fmt::format("step {}", report.step))
      .mend("lower the learning rate, warm up longer, train in f32 or bf16, or look at the data of these steps");
}

EvaluationResult Trainer::evaluate(const MakeLoader& data) {
  check(data != nullptr, "no evaluation data");
  const Stopwatch watch;
  const std::unique_ptr<Loader> loader = data({});
  const EvaluationSums sums = evaluate_all(engine_, *loader, communicator_);
  EvaluationResult report;
  report.step = state_.step;
  report.epoch = epoch_position();
  report.loss = sums.loss();
  report.accuracy = sums.accuracy();
  report.targets = static_cast<std::int64_t>(sums.totals.targets);
  report.samples = sums.samples;
  report.batches = sums.batches;
  report.task = has_task();
  if (auxiliary_weight() != 0) report.auxiliary_loss = sums.totals.auxiliary_mean();
  report.seconds = watch.seconds();
  return report;
}

bool Trainer::is_better(double value, const std::optional<BestMetric>& than, double by) const {
  if (std::isnan(value)) return false;
  if (!than || std::isnan(than->value)) return true;
  return (options_.greater_is_better ? value - than->value : than->value - value) > by;
}

void Trainer::evaluate_on(const MakeLoader& data, const std::string& name) {
  EvaluationResult report = evaluate(data);
  report.data = name;
  if (options_.predict) report.more = options_.predict(name);
  observer_.on_evaluation(report);
}

void Trainer::evaluate_now(bool counts) {
  EvaluationResult report = evaluate(evaluation_);
  if (options_.predict) report.more = options_.predict(report.data);
  report.watched = watched_value(options_.best_metric, report);
  if (!counts) return observer_.on_evaluation(report);
  const bool progress = is_better(report.watched, state_.best, options_.early_stopping_threshold);
  report.best = is_better(report.watched, state_.best);
  evaluations_without_progress_ = progress ? 0 : evaluations_without_progress_ + 1;
  report.without_progress = evaluations_without_progress_;
  state_.counters["evaluations_without_progress"] = evaluations_without_progress_;
  latest_ = BestMetric{options_.best_metric, report.watched, state_.step};
  if (report.best) state_.best = latest_;
  if (plateau_) {
    if (plateau_->observe(report.watched))
      log_info("step {}: the learning rate falls to {:.3g}", state_.step, plateau_->learning_rate());
    const PlateauState::Memory& memory = plateau_->memory();
    state_.plateau = PlateauMemory{memory.learning_rate, memory.best, memory.bad_evaluations, memory.cooldown_left};
  }
  observer_.on_evaluation(report);
}

// Hugging Face counts the delay as the strategy does: in epochs or in steps.
bool Trainer::evaluation_due(bool last) const {
  if (evaluation_ == nullptr) return false;
  if (options_.eval_each_epoch) return (epoch_ended_ || last) && epoch_position() >= options_.eval_delay;
  return options_.eval_every > 0 && state_.step % options_.eval_every == 0 &&
         static_cast<double>(state_.step) >= options_.eval_delay;
}

bool Trainer::should_stop_early() const {
  return options_.early_stopping_patience > 0 && evaluations_without_progress_ >= options_.early_stopping_patience;
}

void Trainer::start_trace() {
  if (options_.trace.empty()) return;
  trace_ = std::make_unique<Trace>(communicator_ == nullptr ? 0 : communicator_->rank());
  engine_.set_trace(trace_.get());
  if (communicator_ == nullptr) return;
  communicator_->set_observer([this](const char* operation, auto begin, auto end, std::uint64_t bytes) {
    trace_->add(Trace::Lane::kCommunication, operation, "communication", begin, end, bytes);
  });
}

void Trainer::end_trace() {
  if (!trace_) return;
  engine_.set_trace(nullptr);
  if (communicator_ != nullptr) communicator_->set_observer(nullptr);
  std::filesystem::path path = options_.trace;
  if (communicator_ != nullptr && communicator_->rank() > 0)
    path.replace_extension(fmt::format("rank{}{}", communicator_->rank(), path.extension().string()));
  trace_->write(path);
  trace_.reset();
}

// Hears of the checkpoint under way when it is written, or waits for it.
void Trainer::finish_save(bool wait) {
  if (wait) saver_.wait();
  const std::optional<CheckpointSaver::Finished> finished = saver_.poll();
  if (!finished) return;
  if (communicator_ != nullptr && communicator_->rank() != 0) return;
  store_.prune(options_.save_total_limit, best_at_save_);
  observer_.on_checkpoint(finished->step, finished->folder, finished->seconds, finished->stall);
}

void Trainer::save_now() {
  if (saved_at_ == state_.step) return;
  finish_save(true);
  if (latest_ && latest_->step == state_.step && is_better(latest_->value, state_.best_saved)) {
    state_.best_saved = latest_;
    observer_.on_best_checkpoint(store_.output_dir() / fmt::format("checkpoint-{}", state_.step));
  }
  const CheckpointContent content{engine_,
                                  source_,
                                  weights_,
                                  options_.carry_from,
                                  state_,
                                  observer_.trainer_state(state_.step, epoch_position()),
                                  options_.save_only_model};
  best_at_save_.reset();
  if (options_.keep_best && state_.best_saved) best_at_save_ = state_.best_saved->step;
  saver_.start(state_.step, content);
  saved_at_ = state_.step;
  if (!options_.save_beside) finish_save(true);
}

std::optional<std::filesystem::path> Trainer::best_checkpoint() const {
  if (!state_.best_saved) return std::nullopt;
  const std::filesystem::path folder = store_.output_dir() / fmt::format("checkpoint-{}", state_.best_saved->step);
  if (!std::filesystem::is_directory(folder)) return std::nullopt;
  return folder;
}

int Trainer::run() {
  const StopSignals signals;
  if (const auto known = state_.counters.find("evaluations_without_progress"); known != state_.counters.end()) {
    evaluations_without_progress_ = known->second;
  }
  state_.data.fingerprint = options_.data_fingerprint;
  loader_ = training_({state_.data.epoch, state_.data.position, state_.data.samples_seen});
  if (options_.eval_first && evaluation_ != nullptr && state_.step == 0) evaluate_now(false);
  start_trace();
  engine_.set_timing(options_.timing);
  const std::int64_t traced_to = state_.step + kTracedSteps;
  while (state_.step < options_.max_steps) {
    const StepResult report = train_step();
    if (state_.step == traced_to) end_trace();
    finish_save(false);
    observer_.on_step(report);
    check_numbers(report);
    const bool last = state_.step == options_.max_steps;
    const auto due = [&](std::int64_t every, bool each_epoch) {
      return (every > 0 && state_.step % every == 0) || (each_epoch && (epoch_ended_ || last));
    };
    bool new_best = false;
    if (evaluation_due(last)) {
      evaluate_now();
      new_best = state_.best && state_.best->step == state_.step;
    }
    if (due(options_.save_every, options_.save_each_epoch) || (options_.save_best && new_best)) save_now();
    if (signal_ != 0) {
      log_info("signal {}: saving a checkpoint after step {}", signal_, state_.step);
      save_now();
      finish_save(true);
      return 128 + signal_;
    }
    if (should_stop_early()) {
      log_info("early stop after step {}: {} evaluations without progress (best {} = {:.4f} at step {})", state_.step,
               evaluations_without_progress_, state_.best->name, state_.best->value, state_.best->step);
      break;
    }
  }
  end_trace();
  finish_save(true);
  if (skipped_in_a_row_ > 0) {
    throw numerics_error(fmt::format("the run ended in {} steps whose gradients were not finite", skipped_in_a_row_))
        .at(fmt::format("step {}", state_.step))
        .mend(
            "lower the learning rate, warm up longer, or look at the data of these steps; the last checkpoint is from "
            "before");
  }
  return 0;
}

}  // namespace convoy
