#include "train/run.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/output_lock.h"
#include "config/resolve.h"
#include "monitor/svg_plot.h"
#include "plan/ceilings.h"
#include "plan/model_flops.h"
#include "train/keep_alive.h"
#include "train/rank_agreement.h"
#include "train/run_checkpoint.h"
#include "train/run_data.h"
#include "train/run_observer.h"
#include "train/run_plan.h"
#include "train/run_setup.h"
#include "train/speech_evaluation.h"
#include "train/trainer.h"

namespace convoy {
namespace {

struct Counts {
  std::int64_t per_epoch, total, warmup;
  std::int64_t rows_per_epoch = 0;
  std::vector<std::int64_t> of_buckets = {};  // steps of an epoch
};

Counts count_steps(const RunConfig& config, const RunData& data) {
  Counts counts{};
  const std::unique_ptr<Loader> loader = data.training_loader({});
  log_info("rows: {}", loader->report().text());
  counts.per_epoch = loader->steps_in_epoch(0);
  counts.of_buckets = loader->steps_of_buckets(0);
  // The last step's empty rows count.
  counts.rows_per_epoch = data.buckets ? loader->rows_in_epoch(0) : counts.per_epoch * data.loading.rows_per_step();
  if (data.buckets) {
    log_info("{}", data.buckets->text(data.train_speech->sizes(), data.train_documents, counts.of_buckets,
                                      data.loading.accumulation * data.loading.world));
  }
  counts.total = total_steps(config, counts.per_epoch);
  counts.warmup = warmup_steps(config, counts.total);
  return counts;
}

ScheduleSettings schedule_settings(const RunConfig& config, const Counts& counts) {
  ScheduleSettings settings;
  settings.type = config.lr_scheduler_type;
  settings.learning_rate = config.learning_rate;
  settings.warmup_steps = counts.warmup;
  settings.total_steps = counts.total;
  settings.parameters = config.lr_scheduler_kwargs;
  if (config.sources.contains("lr_scheduler_kwargs")) settings.where = config.source_of("lr_scheduler_kwargs");
  settings.greater_is_better = best_metric(config).greater_is_better;
  return settings;
}

TrainerOptions trainer_options(const RunConfig& config, const Counts& counts, const RunData& data,
                               const std::string& version) {
  TrainerOptions options;
  options.max_steps = counts.total;
  options.steps_per_epoch = counts.per_epoch;
  options.eval_every = config.eval_strategy == Interval::kSteps ? eval_interval(config, counts.total) : 0;
  options.eval_each_epoch = config.eval_strategy == Interval::kEpoch;
  options.eval_first = config.eval_on_start;
  options.eval_delay = config.eval_delay;
  options.save_every = config.save_strategy == Interval::kSteps ? interval_steps(config.save_steps, counts.total) : 0;
  options.save_each_epoch = config.save_strategy == Interval::kEpoch;
  options.save_best = config.save_strategy == Interval::kBest;
  options.micro_batch_average = config.loss_average == LossAverage::kMicroBatch;
  options.keep_best = config.load_best_model_at_end || config.save_strategy == Interval::kBest;
  const WatchedMetric metric = best_metric(config);
  options.best_metric = metric.name;
  options.greater_is_better = metric.greater_is_better;
  if (options.best_metric == "eval_perplexity" && config.task != TaskName::kCausalLm) {
    throw usage_error("a task's evaluation has no perplexity")
        .at(config.source_of("metric_for_best_model"))
        .mend("take accuracy or loss");
  }
  const bool of_predictions =
      config.predict_with_generate && (options.best_metric == "eval_wer" || options.best_metric == "eval_cer");
  if (options.best_metric != "eval_loss" && options.best_metric != "eval_accuracy" &&
      options.best_metric != "eval_perplexity" && !of_predictions) {
    throw usage_error(fmt::format("there is no metric '{}'", options.best_metric))
        .at(config.source_of("metric_for_best_model"))
        .mend("take loss, perplexity or accuracy; wer or cer with predict_with_generate");
  }
  options.early_stopping_patience = config.early_stopping_patience;
  options.early_stopping_threshold = config.early_stopping_threshold;
  if (config.save_total_limit) options.save_total_limit = static_cast<int>(*config.save_total_limit);
  options.save_only_model = config.save_only_model;
  options.save_beside = config.async_save;
  options.timing = config.wall_clock_breakdown;
  if (config.trace) options.trace = *config.trace;
  options.version = version;
  options.data_seed = data.loading.seed;
  options.data_fingerprint = data.fingerprint();
  options.rows_per_step = data.loading.rows_per_step();
  options.rows_per_epoch = counts.rows_per_epoch;
  options.carry_from = config.model ? std::filesystem::path(*config.model) : tokenizer_path(config);
  if (!std::filesystem::is_directory(options.carry_from)) options.carry_from = options.carry_from.parent_path();
  return options;
}

RunObserver::Settings observer_settings(const RunConfig& config, const Counts& counts, const TrainerOptions& options,
                                        const Engine& engine, const std::optional<Ceilings>& ceilings,
                                        const std::string& gpu) {
  RunObserver::Settings settings;
  settings.max_steps = counts.total;
  settings.steps_per_epoch = counts.per_epoch;
  settings.log_every =
      config.logging_strategy == Interval::kSteps ? interval_steps(config.logging_steps, counts.total) : 0;
  settings.log_each_epoch = config.logging_strategy == Interval::kEpoch;
  settings.log_nothing = config.logging_strategy == Interval::kNo;
  settings.log_first = config.logging_first_step;
  settings.eval_every = options.eval_every;
  settings.save_every = options.save_every;
  settings.memory_bytes = engine.programs().sizes.total();
  settings.ranks = engine.shape().zero.world;
  // Of the mean step, where there are several shapes.
  double flops = 0, tokens = 0;
  for (std::size_t bucket = 0; bucket < counts.of_buckets.size(); ++bucket) {
    const auto steps = static_cast<double>(counts.of_buckets[bucket]);
    flops += steps * model_flops(engine.programs().of_bucket(bucket).micro);
    tokens += steps * static_cast<double>(engine.shape().of_bucket(bucket).tokens());
  }
  settings.flops_per_token = flops / tokens;
  settings.flops_per_step = flops / static_cast<double>(counts.per_epoch) *
                            static_cast<double>(engine.shape().accumulation * engine.shape().zero.world);
  if (ceilings) {
    const DType dtype = engine.shape().dtype;
    const bool tf32 = config.tf32 && dtype == DType::kF32 && config.device == "cuda";
    settings.ceiling = {ceilings->card, ceilings->best_product(tf32 ? "tf32" : name_of(dtype)) * 1e12};
  }
  if (!gpu.empty()) settings.gpu = GpuStatistics::Options{.device = gpu};
  return settings;
}

// An output folder with checkpoints is not trained over by accident.
void check_output(const RunConfig& config, const CheckpointStore& store) {
  if (config.resume_from_checkpoint || config.overwrite_output_dir || store.list().empty()) return;
  throw usage_error(fmt::format("output_dir {} holds checkpoints of an earlier run", config.output_dir))
      .mend(
          "continue it with --resume_from_checkpoint true, start over with --overwrite_output_dir, or take another "
          "folder");
}

void write_plot(const RunConfig& config, const TrainerState& state) {
  Plot plot;
  plot.title = "Loss";
  plot.x_label = "step";
  plot.y_label = "loss (nats per token)";
  PlotSeries train{"training", {}, {}, 0.8};
  PlotSeries eval{"evaluation", {}, {}, 0};
  for (const LogRecord& record : state.log_history) {
    const auto step = number_in(record, "step");
    for (auto [name, series] : {std::pair{"loss", &train}, std::pair{"eval_loss", &eval}}) {
      const auto value = number_in(record, name);
      if (!step || !value) continue;
      series->x.push_back(*step);
      series->y.push_back(*value);
    }
  }
  plot.series.push_back(std::move(train));
  if (!eval.x.empty()) plot.series.push_back(std::move(eval));
  write_file_atomic(*config.plot, svg_text(plot));
}

// Puts the weights of the best checkpoint into the engine, if there is one.
void load_best(const Trainer& trainer, Engine& engine) {
  const auto best = trainer.best_checkpoint();
  if (!best) {
    log_warning("load_best_model_at_end: no checkpoint of the best evaluation was kept; the last weights are saved");
    return;
  }
  load_trained(engine.store(), *best);
  log_info("the best model is that of {}", best->string());
}

// What a task's head makes of a model that was trained for another one.
void report_heads(const Model& model, const WeightMap& weights) {
  for (const std::string& tensor : weights.left_out) log_info("'{}' is left out: this task does not use it", tensor);
  for (const std::size_t fresh : weights.fresh) {
    const std::int64_t added = model.added_rows(fresh);
    if (added > 0 && !model.may_be_missing(fresh)) {
      log_info("'{}' gets {} rows for new tokens", model.parameters()[fresh].name, added);
    } else {
      log_info("'{}' starts fresh: the model comes without it", model.parameters()[fresh].name);
    }
  }
}

LossScaleSettings loss_scale_settings(const RunConfig& config) {
  LossScaleSettings settings;
  settings.loss_scale = config.loss_scale;
  settings.initial_scale_power = static_cast<int>(config.initial_scale_power);
  settings.loss_scale_window = config.loss_scale_window;
  settings.hysteresis = config.hysteresis;
  settings.consecutive_hysteresis = config.consecutive_hysteresis;
  settings.min_loss_scale = config.min_loss_scale;
  return settings;
}

void warn_of_precision(const RunConfig& config, const ModelSource& source) {
  if (config.gradient_compression == GradientCompression::kOneBit)
    log_warning("1-bit gradients learn more slowly than whole ones, see docs/launch.md; bf16 costs next to nothing");
  if (source.dtype == DType::kF16 && source.stored == DType::kBF16) {
    log_warning(
        "the weights are stored in bf16 and trained in fp16: values that bf16 holds may overflow fp16. bf16: true "
        "keeps "
        "their range");
  }
}

}  // namespace

int run_training(const RunConfig& settings, Device& device, const std::string& version, Communicator& communicator) {
  const auto begin = std::chrono::steady_clock::now();
  const int rank = communicator.rank();
  const bool first = rank == 0;
  const RunConfig config = for_ranks(settings, communicator.size());
  apply_process_settings(config, rank, communicator.size());
  std::optional<KeepAlive> keep_alive(std::in_place, communicator);  // setting up may take longer than the timeout
  Facts facts = shared_settings(config);
  facts.emplace_back("Convoy's version", version);
  require_agreement(facts, "start every rank with the same settings and program", communicator);
  require_training_inputs(config);
  // Read by every rank, so that an error ends them all alike.
  const std::optional<Ceilings> ceilings = known_ceilings(config, device);
  const ModelSource source = open_model(config);
  if (config.from_scratch && source.adapter != nullptr) {
    throw usage_error("LoRA adapts a model that is there, and from_scratch starts from random weights")
        .at(config.source_of("from_scratch"))
        .mend("give --model FOLDER, or leave lora_rank out");
  }
  if (first) warn_of_precision(config, source);
  CheckpointStore store(config.output_dir);
  std::optional<OutputLock> output_lock;
  if (first) {  // the others hear of it
    output_lock.emplace(config.output_dir);
    check_output(config, store);
  }
  if (config.predict_with_generate && !source.model->audio()) {
    throw usage_error("predict_with_generate is for models that hear")
        .at(config.source_of("predict_with_generate"))
        .mend("leave it out: a text model is evaluated by its loss");
  }
  TextNormalization::named(config.error_rate_normalization);
  if (config.eval_strategy != Interval::kNo && config.validation_files.empty() && config.validation_split == 0) {
    throw usage_error("eval_strategy asks for evaluations but there are no validation data")
        .mend("give --validation_files or --validation_split");
  }
  TrainShape shape = train_shape(config, source, evaluates(config), rank, communicator.size());
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(tokenizer_path(config));
  std::optional<RunData> opened;
  const auto open = [&] { opened = open_data(config, *tokenizer, source, shape, communicator); };
  if (!config.duration_buckets.empty()) {  // the run's shapes follow from its data
    open();
    use_buckets(config, source, *opened, shape);
  }
  fit_recompute(config, source, ceilings, device, communicator, shape);
  report_plan(source, shape, config, device, first);
  if (!opened) open();
  const RunData& data = *opened;
  require_agreement(shared_inputs(source, *tokenizer, data), "give every rank the same files", communicator);
  const Counts counts = count_steps(config, data);
  TrainerOptions options = trainer_options(config, counts, data, version);
  if (!source.task.added_tokens.empty()) {
    const std::filesystem::path extended = std::filesystem::path(config.output_dir) / "tokenizer";
    if (first) write_extended_tokenizer(options.carry_from, extended, source.task.added_tokens);
    options.carry_from = extended;
  }
  const ScheduleSettings rate = schedule_settings(config, counts);
  const Schedule schedule = make_schedule(rate);
  std::optional<PlateauState> plateau;
  if (config.lr_scheduler_type == "reduce_lr_on_plateau") plateau.emplace(rate);
  std::optional<LossScaler> scaler;
  if (source.dtype == DType::kF16) scaler.emplace(loss_scale_settings(config));

  Engine engine(device, *source.model, shape, &communicator);
  const WeightMap weights = start_weights(engine.store(), source, shape);
  if (source.folder) report_heads(*source.model, weights);
  std::optional<SpeechEvaluation> written;
  if (config.predict_with_generate && (data.has_validation() || data.test != nullptr)) {
    written.emplace(config, device, source, shape, *tokenizer, communicator);
    options.predict = [&](const std::string& name) {
      const bool test = name == "test";
      const SpeechErrors errors =
          written->run(engine.store(), test ? *data.test_speech : *data.validation_speech,
                       test ? all_documents(data.test->documents()) : data.validation_documents);
      return std::vector<std::pair<std::string, double>>{{name + "_wer", errors.words.rate()},
                                                         {name + "_cer", errors.characters.rate()}};
    };
  }
  std::optional<std::filesystem::path> checkpoint;
  if (config.resume_from_checkpoint) checkpoint = find_checkpoint(*config.resume_from_checkpoint, store, communicator);
  std::optional<std::int64_t> resumed_step;
  if (checkpoint) resumed_step = read_training_state(*checkpoint).step;
  TrainingObserver silent;
  std::optional<RunObserver> speaking;
  if (first)
    speaking.emplace(config, observer_settings(config, counts, options, engine, ceilings, device.bus_id()),
                     resumed_step);
  TrainingObserver& observer = first ? static_cast<TrainingObserver&>(*speaking) : silent;
  Trainer::MakeLoader evaluation;
  if (data.has_validation()) evaluation = [&](const Cursor& start) { return data.validation_loader(start); };
  Trainer trainer(
      engine, source, weights, [&](const Cursor& start) { return data.training_loader(start); }, evaluation, schedule,
      plateau, scaler, store, options, observer, &communicator);
  if (checkpoint) {
    trainer.resume(*checkpoint);
    if (first) speaking->resume(*checkpoint);
    log_info("resumed from {} at step {}", checkpoint->string(), trainer.state().step);
    if (shape.zero.one_bit) log_info("what 1-bit gradients had lost before the checkpoint starts at zero again");
  }
  if (first) write_file_atomic(std::filesystem::path(config.output_dir) / "resolved.yaml", print_resolved(settings));
  log_info(
      "{} steps, {} per epoch, {}{} rows of {}{} tokens each; ready after {:.2f} s on {}{}", counts.total,
      counts.per_epoch, data.buckets ? "up to " : "", options.rows_per_step, data.buckets ? "up to " : "", shape.seq,
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), device.name(),
      communicator.size() > 1 ? fmt::format(", {} ranks, ZeRO stage {}", communicator.size(), shape.zero.stage) : "");
  communicator.barrier();
  keep_alive.reset();
  const int status = trainer.run();
  keep_alive.emplace(communicator);
  if (status != 0) {
    if (first) speaking->finish(speaking->last_step());
    communicator.barrier();
    return status;
  }
  if (config.load_best_model_at_end) load_best(trainer, engine);
  if (data.test != nullptr) {
    communicator.barrier();
    keep_alive.reset();
    trainer.evaluate_on([&](const Cursor& start) { return data.test_loader(start); }, "test");
    keep_alive.emplace(communicator);
  }
  if (first) speaking->finish(speaking->last_step());
  save_model(config.output_dir, engine, source, weights, options.carry_from, &communicator);
  if (first && config.plot)
    write_plot(config, read_trainer_state(std::filesystem::path(config.output_dir) / "trainer_state.json"));
  // The first rank may hang or fail in its last writing: somebody has to be there to notice.
  communicator.barrier();
  log_info("the model is in {}", config.output_dir);
  return 0;
}

void check_before_start(const RunConfig& config) {
  require_training_inputs(config);
  // The number of steps is not known yet: one that warm-up parameters fit into.
  constexpr std::int64_t kMany = std::int64_t{1} << 50;
  const Counts counts{kMany, kMany, warmup_steps(config, kMany)};
  const ScheduleSettings rate = schedule_settings(config, counts);
  make_schedule(rate);
  if (config.lr_scheduler_type == "reduce_lr_on_plateau") PlateauState{rate};
}

}  // namespace convoy
