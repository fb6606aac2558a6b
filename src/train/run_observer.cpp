#include "train/run_observer.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>

#include "base/files.h"
#include "base/log.h"
#include "config/resolve.h"
#include "program/program.h"

namespace convoy {
namespace {

double now() {
  return static_cast<double>(std::time(nullptr));
}

std::filesystem::path log_path(const RunConfig& config) {
  return config.log_file ? std::filesystem::path(*config.log_file)
                         : std::filesystem::path(config.output_dir) / "log.jsonl";
}

std::filesystem::path tensorboard_folder(const RunConfig& config) {
  if (config.logging_dir) return *config.logging_dir;
  const std::time_t time = std::time(nullptr);
  char stamp[32] = {};
  std::strftime(stamp, sizeof(stamp), "%b%d_%H-%M-%S", std::localtime(&time));
  return std::filesystem::path(config.output_dir) / "runs" / (config.run_name ? *config.run_name : std::string(stamp));
}

}  // namespace

RunObserver::RunObserver(const RunConfig& config, const Settings& settings, std::optional<std::int64_t> resumed_step)
    : config_(config), settings_(settings) {
  std::filesystem::create_directories(config.output_dir);
  const std::filesystem::path log_file = log_path(config);
  if (log_file.has_parent_path()) std::filesystem::create_directories(log_file.parent_path());
  jsonl_ = std::make_unique<JsonlLog>(log_file, resumed_step);
  if (jsonl_->cut_entries() > 0)
    log_info("{}: {} entries after the checkpoint's step were cut", log_file.string(), jsonl_->cut_entries());
  Progress::Options options;
  options.terminal = Progress::is_terminal(stdout) && !config.disable_tqdm;
  options.first_step = resumed_step.value_or(0);
  progress_ = std::make_unique<Progress>(options);
  if (config.reports_to_tensorboard()) events_ = std::make_unique<EventWriter>(tensorboard_folder(config));
  if (settings.gpu) gpu_ = GpuStatistics::start(*settings.gpu);
  if (gpu_ && settings.ceiling && settings.ceiling->card != gpu_->card()) {
    log_warning("{} was measured on '{}', this card is '{}': shares of the ceiling mean little", *config.ceilings_file,
                settings.ceiling->card, gpu_->card());
  }
  state_.max_steps = settings.max_steps;
  state_.num_train_epochs = static_cast<std::int64_t>(std::ceil(config.num_train_epochs));
  state_.logging_steps = static_cast<double>(settings.log_every);
  state_.eval_steps = static_cast<double>(settings.eval_every);
  state_.save_steps = static_cast<double>(settings.save_every);
  state_.train_batch_size = config.per_device_train_batch_size;
}

void RunObserver::resume(const std::filesystem::path& checkpoint) {
  const TrainerState before = read_trainer_state(checkpoint / "trainer_state.json");
  state_.log_history = before.log_history;
  state_.best_global_step = before.best_global_step;
  state_.best_metric = before.best_metric;
  state_.best_model_checkpoint = before.best_model_checkpoint;
  state_.early_stopping = before.early_stopping;
  state_.total_flos = before.total_flos;
}

void RunObserver::log(const LogRecord& record, std::int64_t step) {
  LogRecord full = record;
  full.emplace_back("step", step);
  jsonl_->write(full);
  if (events_) events_->record(full, step, now());
  state_.log_history.push_back(full);
}

void RunObserver::on_step(const StepResult& result) {
  last_ = result;
  const bool finite = std::isfinite(result.loss);
  if (finite) finite_loss_ = result.loss;
  loss_sum_ += finite || !config_.logging_nan_inf_filter ? result.loss : finite_loss_;
  log_seconds_ += result.seconds;
  tokens_since_log_ += result.tokens;
  ++steps_since_log_;
  total_loss_ += result.loss;
  total_tokens_ += result.tokens;
  ++total_steps_;
  state_.total_flos += settings_.flops_per_token * static_cast<double>(result.tokens);
  state_.num_input_tokens_seen = result.tokens_seen;
  const bool due =
      !settings_.log_nothing &&
      ((settings_.log_every > 0 && result.step % settings_.log_every == 0) ||
       (settings_.log_first && result.step == 1) ||
       (settings_.log_each_epoch && settings_.steps_per_epoch > 0 && result.step % settings_.steps_per_epoch == 0) ||
       result.step == settings_.max_steps);
  StepReport report;
  report.step = result.step;
  report.total = settings_.max_steps;
  report.epoch = result.epoch;
  report.learning_rate = result.learning_rate;
  report.gradient_norm = result.gradient_norm;
  report.memory_bytes = static_cast<std::int64_t>(settings_.memory_bytes);
  report.logged = due;
  report.loss = due ? loss_sum_ / static_cast<double>(steps_since_log_) : result.loss;
  report.tokens_per_second = static_cast<double>(tokens_since_log_) / log_seconds_;
  const double flops_per_second =
      log_seconds_ > 0 ? settings_.flops_per_step * static_cast<double>(steps_since_log_) / log_seconds_ : 0;
  add_speed(report, flops_per_second);
  progress_->update(report, seconds());
  print_details(result, due);
  if (!due) return;
  LogRecord record = {
      {"loss", report.loss},   {"grad_norm", result.gradient_norm}, {"learning_rate", result.learning_rate},
      {"epoch", result.epoch}, {"accuracy", result.accuracy},       {"tokens_per_second", report.tokens_per_second}};
  if (result.auxiliary_loss) {
    record.emplace_back("task_loss", *result.task_loss);
    record.emplace_back("lm_loss", *result.auxiliary_loss);
  }
  if (flops_per_second > 0) record.emplace_back("flops_per_second", flops_per_second);
  if (report.share_of_ceiling) record.emplace_back("share_of_ceiling", *report.share_of_ceiling);
  if (gpu_) add_to(record, gpu_->take());
  if (result.loss_scale) {
    record.emplace_back("loss_scale", *result.loss_scale);
    record.emplace_back("skipped_steps", result.skipped_steps);
  }
  if (settings_.ranks > 1) {
    record.emplace_back("slowest_rank", std::int64_t{result.slowest_rank});
    record.emplace_back("slowest_rank_seconds", result.slowest_seconds);
    record.emplace_back("fastest_rank_seconds", result.fastest_seconds);
    record.emplace_back("longest_wait_seconds", result.longest_wait);
  }
  if (config_.include_num_input_tokens_seen) record.emplace_back("num_input_tokens_seen", result.tokens_seen);
  log(record, result.step);
  loss_sum_ = log_seconds_ = 0;
  steps_since_log_ = tokens_since_log_ = 0;
}

// On the progress line only where it says something: beside a card's other figures, or its ceiling.
void RunObserver::add_speed(StepReport& report, double flops_per_second) const {
  if (gpu_ || settings_.ceiling) report.flops_per_second = flops_per_second;
  if (settings_.ceiling)
    report.share_of_ceiling = flops_per_second / settings_.ranks / settings_.ceiling->flops_per_second;
  if (!gpu_) return;
  if (const std::optional<GpuSample> look = gpu_->latest()) report.gpu = gpu_text(*look);
}

void RunObserver::print_details(const StepResult& result, bool due) {
  if (config_.steps_per_print && result.step % *config_.steps_per_print == 0) {
    progress_->message(fmt::format("step={}, skipped={}, lr=[{:g}], mom=[[{:g}, {:g}]]{}", result.step,
                                   result.skipped_steps, result.learning_rate, config_.adam_beta1, config_.adam_beta2,
                                   result.loss_scale ? fmt::format(", loss scale {:.10g}", *result.loss_scale) : ""));
  }
  if (!due || !result.timing) return;
  const Executor::Timing& time = *result.timing;
  std::string line = fmt::format(
      "time (ms) | fwd: {:.2f} | bwd: {:.2f} | recompute: {:.2f} | step: {:.2f} | whole: {:.2f}", 1e3 * time.forward,
      1e3 * time.backward, 1e3 * time.recompute, 1e3 * time.update, 1e3 * result.seconds);
  if (settings_.ranks > 1) {
    line += fmt::format(" | waiting for others: {:.2f} | slowest rank {}: {:.2f}, fastest: {:.2f}", 1e3 * time.waiting,
                        result.slowest_rank, 1e3 * result.slowest_seconds, 1e3 * result.fastest_seconds);
  }
  progress_->message(line);
}

void RunObserver::on_evaluation(const EvaluationResult& result) {
  const std::string p = result.data + "_";
  LogRecord record = {{p + "loss", result.loss}};
  std::string text = fmt::format("loss {:.4f}", result.loss);
  if (!result.task) {
    record.emplace_back(p + "perplexity", std::exp(result.loss));
    text += fmt::format("  perplexity {:.2f}", std::exp(result.loss));
  } else if (result.auxiliary_loss) {
    record.emplace_back(p + "lm_loss", *result.auxiliary_loss);
    text += fmt::format("  language model's {:.4f}", *result.auxiliary_loss);
  }
  record.insert(record.end(), {{p + "accuracy", result.accuracy},
                               {p + "targets", result.targets},
                               {p + "runtime", result.seconds},
                               {p + "samples_per_second", static_cast<double>(result.samples) / result.seconds},
                               {p + "steps_per_second", static_cast<double>(result.batches) / result.seconds},
                               {"epoch", result.epoch}});
  std::string more;
  for (const auto& [name, value] : result.more) {
    record.emplace_back(name, value);
    more += fmt::format("  {} {:.2f}%", name.substr(name.find('_') + 1), 100 * value);
  }
  log(record, result.step);
  if (!more.empty()) progress_->message("what the model writes:" + more);
  text += fmt::format("  accuracy {:.1f}%", 100 * result.accuracy);
  if (result.task) {
    text +=
        fmt::format(" ({} of {})", std::llround(result.accuracy * static_cast<double>(result.targets)), result.targets);
  }
  progress_->message(fmt::format("{} at step {}: {}  ({:.1f} s){}", result.data == "eval" ? "evaluation" : result.data,
                                 result.step, text, result.seconds, result.best ? "  best so far" : ""));
  if (result.data == "eval" && config_.early_stopping_patience > 0) {
    state_.early_stopping = TrainerState::EarlyStopping{config_.early_stopping_patience, result.without_progress,
                                                        config_.early_stopping_threshold};
  }
  if (!result.best) return;
  state_.best_global_step = result.step;
  state_.best_metric = result.watched;
}

void RunObserver::on_best_checkpoint(const std::filesystem::path& folder) {
  state_.best_model_checkpoint = folder.string();
}

void RunObserver::on_checkpoint(std::int64_t step, const std::filesystem::path& folder, double seconds_taken,
                                double stall) {
  progress_->message(fmt::format("checkpoint of step {}: {} ({:.1f} s, training stood still for {:.2f} s)", step,
                                 folder.string(), seconds_taken, stall));
}

std::string RunObserver::trainer_state(std::int64_t step, double epoch) {
  state_.global_step = step;
  state_.epoch = epoch;
  return trainer_state_text(state_);
}

void RunObserver::finish(const StepResult* last) {
  progress_->finish();
  if (last == nullptr || total_steps_ == 0) return;
  const double runtime = seconds();
  log({{"train_runtime", runtime},
       {"train_tokens_per_second", static_cast<double>(total_tokens_) / runtime},
       {"train_steps_per_second", static_cast<double>(total_steps_) / runtime},
       {"train_loss", total_loss_ / static_cast<double>(total_steps_)},
       {"epoch", last->epoch}},
      last->step);
  write_file_atomic(std::filesystem::path(config_.output_dir) / "trainer_state.json",
                    trainer_state(last->step, last->epoch));
  fmt::print("{} steps in {}, {} tok/s, mean loss {:.4f}\n", total_steps_, duration_text(runtime),
             short_number(static_cast<double>(total_tokens_) / runtime),
             total_loss_ / static_cast<double>(total_steps_));
}

}  // namespace convoy
