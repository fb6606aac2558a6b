// Settings that contradict each other, and settings that another one leaves without effect.
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "config/key_registry.h"
#include "config/run_config.h"

namespace convoy {
namespace {

Error conflict(const RunConfig& config, const std::string& key, const std::string& what, const std::string& remedy) {
  Error error = usage_error(what);
  error.at(config.source_of(key) == "default" ? key : config.source_of(key));
  return error.mend(remedy);
}

std::string_view word(Interval interval) {
  switch (interval) {
    case Interval::kNo:
      return "no";
    case Interval::kSteps:
      return "steps";
    case Interval::kEpoch:
      return "epoch";
    case Interval::kBest:
      return "best";
  }
  return "";
}

void check_whole(const RunConfig& config, const std::string& key, double value) {
  if (value > 1 && value != std::floor(value))
    throw conflict(config, key, fmt::format("`{}` must be a whole number if bigger than 1, not {}", key, value),
                   "give a whole number of steps, or a share of all steps below 1");
}

void check_intervals(const RunConfig& config) {
  check_whole(config, "logging_steps", config.logging_steps);
  check_whole(config, "eval_steps", config.eval_steps.value_or(0));
  check_whole(config, "save_steps", config.save_steps);
  check_whole(config, "warmup_steps", config.warmup_steps);
  check_whole(config, "validation_split", config.validation_split);
  if (config.logging_strategy == Interval::kSteps && config.logging_steps == 0)
    throw conflict(config, "logging_steps", "`logging_strategy: steps` needs `logging_steps` above 0",
                   "set logging_steps, or logging_strategy: no");
  if (config.eval_strategy == Interval::kSteps && config.eval_steps.value_or(config.logging_steps) == 0)
    throw conflict(config, "eval_strategy", "`eval_strategy: steps` needs `eval_steps` or `logging_steps` above 0",
                   "set eval_steps");
}

void check_evaluation(const RunConfig& config) {
  const bool evaluates = config.eval_strategy != Interval::kNo;
  const bool has_data = !config.validation_files.empty() || config.validation_split > 0;
  if ((evaluates || config.eval_on_start) && !has_data)
    throw conflict(config, evaluates ? "eval_strategy" : "eval_on_start",
                   fmt::format("{} needs data to evaluate on",
                               evaluates ? fmt::format("`eval_strategy: {}`", word(config.eval_strategy))
                                         : "`eval_on_start: true`"),
                   "give validation_files or validation_split");
  if (!config.validation_files.empty() && config.validation_split > 0)
    throw conflict(config, "validation_split", "`validation_split` and `validation_files` are both given",
                   "keep one of them");
  if (config.lr_scheduler_type == "reduce_lr_on_plateau" && !evaluates)
    throw conflict(config, "lr_scheduler_type", "`lr_scheduler_type: reduce_lr_on_plateau` needs evaluations",
                   "set eval_strategy");
  if (config.save_strategy == Interval::kBest && !evaluates)
    throw conflict(config, "save_strategy", "`save_strategy: best` needs evaluations", "set eval_strategy");
  if (config.save_strategy == Interval::kBest && !config.metric_for_best_model)
    throw conflict(config, "save_strategy", "`save_strategy: best` needs `metric_for_best_model`",
                   "set metric_for_best_model, such as loss");
  if (config.early_stopping_patience > 0 && !config.load_best_model_at_end)
    throw conflict(config, "early_stopping_patience", "`early_stopping_patience` needs `load_best_model_at_end: true`",
                   "set load_best_model_at_end");
}

// Steps and shares cannot be compared before the number of all steps is known, as in Hugging Face's check.
void check_best_steps(const RunConfig& config) {
  const double eval = config.eval_steps.value_or(config.logging_steps);
  const double save = config.save_steps;
  const std::string what = fmt::format(
      "`load_best_model_at_end` needs `save_steps` to be a multiple of `eval_steps`, but found {} and {}", save, eval);
  if ((eval < 1) != (save < 1))
    throw conflict(config, "save_steps", what + ", a share and a number of steps", "give both in the same way");
  constexpr double kShareUnits = 1e6;
  const double unit = eval < 1 ? kShareUnits : 1;
  if (std::fmod(std::round(save * unit), std::round(eval * unit)) != 0)
    throw conflict(config, "save_steps", what, "set save_steps to a multiple of eval_steps");
}

void check_best(const RunConfig& config) {
  if (!config.load_best_model_at_end) return;
  if (config.eval_strategy == Interval::kNo)
    throw conflict(config, "load_best_model_at_end", "`load_best_model_at_end` needs evaluations", "set eval_strategy");
  if (config.save_strategy == Interval::kBest) return;
  if (config.save_strategy != config.eval_strategy)
    throw conflict(config, "load_best_model_at_end",
                   fmt::format("`load_best_model_at_end` needs the save and eval strategy to match, but found "
                               "`save_strategy: {}` and `eval_strategy: {}`",
                               word(config.save_strategy), word(config.eval_strategy)),
                   "set both to steps or both to epoch");
  if (config.eval_strategy == Interval::kSteps) check_best_steps(config);
}

void check_optimizer(const RunConfig& config) {
  if (!config.master_weights && config.dtype == DType::kF16)
    throw conflict(config, "master_weights", "float16 weights need a float32 copy",
                   "use dtype: bf16, or leave master_weights out");
  if (config.nesterov && (config.momentum == 0 || config.dampening != 0))
    throw conflict(config, "nesterov", "`nesterov` needs `momentum` above 0 and `dampening: 0`",
                   "set momentum, or leave nesterov out");
}

void check_task(const RunConfig& config) {
  if (config.task == TaskName::kCausalLm) return;
  if (config.data_format == DataFormat::kText)
    throw conflict(config, "data_format", "`data_format: text` holds no labels, which a task needs",
                   "give csv, tsv or jsonl files");
  if (config.label_smoothing_factor > 0 || config.z_loss > 0)
    throw conflict(config, config.z_loss > 0 ? "z_loss" : "label_smoothing_factor",
                   "`label_smoothing_factor` and `z_loss` are only for `task: causal_lm`", "leave them out");
  if (config.seq_length && *config.seq_length < 8)
    throw conflict(config, "seq_length", "a task's texts need at least 8 tokens", "set seq_length higher");
}

void check_model(const RunConfig& config) {
  if (config.model_config && !config.from_scratch)
    throw conflict(config, "model_config", "`model_config` is only for `from_scratch: true`",
                   "set from_scratch, or leave model_config out");
  if (config.overwrite_output_dir && config.resume_from_checkpoint)
    throw conflict(config, "overwrite_output_dir",
                   "`overwrite_output_dir` starts anew, and `resume_from_checkpoint` goes on", "keep one of them");
}

void check_buckets(const RunConfig& config) {
  if (config.duration_buckets.empty() != !config.batch_seconds)
    throw conflict(config, config.batch_seconds ? "batch_seconds" : "duration_buckets",
                   "`duration_buckets` and `batch_seconds` need each other",
                   "give both: duration_buckets: 6 and batch_seconds: 120");
  if (config.batch_seconds && config.train_batch_size)
    throw conflict(config, "train_batch_size", "`train_batch_size` counts rows, which contradicts `batch_seconds`",
                   "keep one of them; gradient_accumulation_steps makes a larger global batch");
}

struct Condition {
  const char* key;
  bool active;
  const char* reason;
};

}  // namespace

void check_run_config(const RunConfig& config) {
  check_model(config);
  check_intervals(config);
  check_evaluation(config);
  check_best(config);
  check_optimizer(config);
  check_task(config);
  check_buckets(config);
}

std::vector<std::string> inactive_keys(const RunConfig& config) {
  const bool evaluates = config.eval_strategy != Interval::kNo;
  const bool watches = config.load_best_model_at_end || config.save_strategy == Interval::kBest ||
                       config.lr_scheduler_type == "reduce_lr_on_plateau";
  const bool sgd = config.optim == OptimizerName::kSgd;
  const bool betas = config.optim != OptimizerName::kSgd && config.optim != OptimizerName::kAdagrad;
  const bool text_files = config.data_format == DataFormat::kAuto || config.data_format == DataFormat::kText;
  const bool text_only = config.data_format == DataFormat::kText;
  const bool stage3 = config.zero_stage == 3;
  const bool half = config.dtype == DType::kF16;
  const bool host = config.device == "cpu";
  const char* there = "the CPU device keeps it in host memory anyway";
  const Condition conditions[] = {
      {"offload_optimizer", !host, there},
      {"offload_activations", !host, "the CPU device keeps them in host memory anyway"},
      {"offload_param", !host, "the CPU device keeps them in host memory anyway"},
      {"tf32", !host, "the CPU device multiplies float32 as it is"},
      {"tf32", host || !config.dtype || config.dtype == DType::kF32, "dtype is not f32"},
      {"stage3_prefetch_bucket_size", stage3, "zero_stage is not 3"},
      {"stage3_param_persistence_threshold", stage3, "zero_stage is not 3"},
      {"stage3_param_persistence_threshold", host || !stage3 || config.offload_param == OffloadDevice::kNone,
       "offload_param keeps small weights in host memory too"},
      {"stage3_max_live_parameters", stage3, "zero_stage is not 3"},
      {"stage3_max_reuse_distance", stage3, "zero_stage is not 3"},
      {"per_device_train_batch_size", !config.batch_seconds, "batch_seconds says how many rows a micro-batch has"},
      {"loss_scale", half, "dtype is not f16"},
      {"initial_scale_power", half && config.loss_scale == 0, "there is no dynamic loss scale"},
      {"loss_scale_window", half && config.loss_scale == 0, "there is no dynamic loss scale"},
      {"hysteresis", half && config.loss_scale == 0, "there is no dynamic loss scale"},
      {"consecutive_hysteresis", half && config.loss_scale == 0, "there is no dynamic loss scale"},
      {"min_loss_scale", half && config.loss_scale == 0, "there is no dynamic loss scale"},
      {"elastic", config.max_restarts > 0, "max_restarts is 0"},
      {"eval_steps", config.eval_strategy == Interval::kSteps, "eval_strategy is not steps"},
      {"eval_delay", evaluates, "eval_strategy is no"},
      {"metric_for_best_model", watches, "nothing watches it; see load_best_model_at_end"},
      {"greater_is_better", watches, "nothing watches a metric; see load_best_model_at_end"},
      {"early_stopping_threshold", config.early_stopping_patience > 0, "early_stopping_patience is 0"},
      {"save_steps", config.save_strategy == Interval::kSteps, "save_strategy is not steps"},
      {"logging_steps",
       config.logging_strategy == Interval::kSteps || (config.eval_strategy == Interval::kSteps && !config.eval_steps),
       "logging_strategy is not steps"},
      {"logging_dir", config.reports_to_tensorboard(), "report_to has no tensorboard"},
      {"warmup_ratio", config.warmup_steps == 0, "warmup_steps is above 0"},
      {"num_train_epochs", config.max_steps <= 0, "max_steps is above 0"},
      {"momentum", sgd, "optim is not sgd"},
      {"dampening", sgd && config.momentum > 0, "it belongs to optim sgd with momentum"},
      {"nesterov", sgd, "optim is not sgd"},
      {"adam_beta1", betas, "the optimizer has no such moment"},
      {"adam_beta2", betas, "the optimizer has no such moment"},
      {"adam_epsilon", config.optim != OptimizerName::kSgd && config.optim != OptimizerName::kLion,
       "the optimizer divides by no root"},
      {"decay_bias_norm", config.weight_decay > 0, "weight_decay is 0"},
      {"num_choices", config.task == TaskName::kMultipleChoice, "task is not multiple_choice"},
      {"lm_coef", config.task == TaskName::kMultipleChoice, "task is not multiple_choice"},
      {"class_names", config.task == TaskName::kClassification, "task is not classification"},
      {"label_field", config.task != TaskName::kCausalLm, "task is causal_lm"},
      {"packing", config.task == TaskName::kCausalLm, "a task's samples have rows of their own"},
      {"too_long", config.task == TaskName::kCausalLm, "a task's samples are cut to seq_length"},
      {"text_mode", text_files, "data_format is not text"},
      {"chat_format", !text_only, "data_format is text"},
      {"text_field", !text_only, "data_format is text"},
      {"data_seed", config.train_sampling_strategy == SampleOrder::kRandom, "train_sampling_strategy is sequential"},
  };
  static const RunConfig defaults;
  std::vector<std::string> notes;
  for (const Condition& condition : conditions) {
    const Key* key = find_key(condition.key);
    check(key != nullptr, "a condition names an unknown key");
    const bool set = config.sources.count(condition.key) > 0 && key->get(config) != key->get(defaults);
    if (set && !condition.active)
      notes.push_back(
          fmt::format("no effect: `{}` ({}): {}", condition.key, config.source_of(condition.key), condition.reason));
  }
  return notes;
}

}  // namespace convoy
