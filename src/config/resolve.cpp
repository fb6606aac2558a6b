#include "config/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/files.h"

namespace convoy {
namespace {

std::int64_t share(std::int64_t total, double part) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(total) * part));
}

}  // namespace

namespace {

// "2 × 4, 4 × 2": micro-batches and accumulation that make `per_rank`.
std::string factor_pairs(std::int64_t per_rank) {
  std::string text;
  for (std::int64_t micro = 1; micro <= per_rank && text.size() < 120; ++micro) {
    if (per_rank % micro == 0) text += fmt::format("{}{} × {}", text.empty() ? "" : ", ", micro, per_rank / micro);
  }
  return text;
}

std::string batch_remedy(std::int64_t batch, std::int64_t micro, std::int64_t accumulation, int ranks) {
  std::string text;
  if (batch % ranks == 0)
    text = fmt::format("on {} ranks micro-batch × accumulation may be {}", ranks, factor_pairs(batch / ranks));
  if (micro > 0 && accumulation > 0 && batch % (micro * accumulation) == 0)
    text += fmt::format("{}these values fit {} ranks", text.empty() ? "" : "; ", batch / (micro * accumulation));
  text += fmt::format("{}set train_batch_size to {}", text.empty() ? "" : "; or ",
                      std::max<std::int64_t>(1, micro) * std::max<std::int64_t>(1, accumulation) * ranks);
  return text;
}

}  // namespace

void resolve_batch(RunConfig& config, int ranks) {
  if (!config.train_batch_size) return;
  const std::int64_t batch = *config.train_batch_size;
  const bool has_micro = config.sources.contains("per_device_train_batch_size");
  const bool has_accumulation = config.sources.contains("gradient_accumulation_steps");
  std::int64_t micro = config.per_device_train_batch_size;
  std::int64_t accumulation = config.gradient_accumulation_steps;
  if (has_micro && !has_accumulation) accumulation = batch / micro / ranks;
  if (!has_micro && has_accumulation) micro = batch / ranks / accumulation;
  if (!has_micro && !has_accumulation) {
    accumulation = 1;
    micro = batch / ranks;
  }
  const auto fail = [&](const std::string& what) {
    return usage_error(what)
        .at(config.source_of("train_batch_size"))
        .mend(batch_remedy(batch, micro, accumulation, ranks));
  };
  if (micro <= 0) throw fail(fmt::format("Micro batch size per gpu: {} has to be greater than 0", micro));
  if (accumulation <= 0)
    throw fail(fmt::format("Gradient accumulation steps: {} has to be greater than 0", accumulation));
  if (batch != micro * accumulation * ranks) {
    throw fail(fmt::format(
        "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
        "world_size {} != {} * {} * {}",
        batch, micro, accumulation, ranks));
  }
  config.per_device_train_batch_size = micro;
  config.gradient_accumulation_steps = accumulation;
}

std::int64_t global_batch_size(const RunConfig& config, std::int64_t world_size) {
  return config.per_device_train_batch_size * config.gradient_accumulation_steps * world_size;
}

std::int64_t steps_per_epoch(const RunConfig& config, std::int64_t micro_batches) {
  const std::int64_t per_step = config.gradient_accumulation_steps;
  return micro_batches / per_step + (micro_batches % per_step > 0 ? 1 : 0);
}

std::int64_t total_steps(const RunConfig& config, std::int64_t per_epoch) {
  if (config.max_steps > 0) return config.max_steps;
  return share(per_epoch, config.num_train_epochs);
}

std::int64_t warmup_steps(const RunConfig& config, std::int64_t total) {
  if (config.warmup_steps >= 1) return static_cast<std::int64_t>(config.warmup_steps);
  return share(total, config.warmup_steps > 0 ? config.warmup_steps : config.warmup_ratio);
}

std::int64_t interval_steps(double value, std::int64_t total) {
  if (value >= 1) return static_cast<std::int64_t>(value);
  return std::max<std::int64_t>(1, share(total, value));
}

std::int64_t eval_interval(const RunConfig& config, std::int64_t total) {
  return interval_steps(config.eval_steps.value_or(config.logging_steps), total);
}

DType resolve_dtype(const RunConfig& config, std::optional<DType> stored) {
  if (config.dtype) return *config.dtype;
  if (config.from_scratch || !stored) return DType::kF32;
  if (*stored == DType::kF32 || *stored == DType::kBF16) return *stored;
  throw usage_error(
      fmt::format("the weights are stored as {}: it must be said what training computes in", name_of(*stored)))
      .at("dtype")
      .mend("choose dtype: bf16, f32, or f16 (with loss scaling)");
}

bool narrow_gradients(const RunConfig& config, DType dtype) {
  if (config.gradient_dtype == DType::kF32) return false;
  if (config.gradient_dtype == dtype) return true;
  const std::string_view given = name_of(config.gradient_dtype), run = name_of(dtype);
  throw usage_error(fmt::format("gradients in {} do not fit a run in {}", given, run))
      .at(config.source_of("gradient_dtype"))
      .mend(dtype == DType::kF32 ? fmt::format("set gradient_dtype: f32, or dtype: {}", given)
                                 : fmt::format("set gradient_dtype: {} or f32", run));
}

WatchedMetric best_metric(const RunConfig& config) {
  WatchedMetric metric;
  metric.name = config.metric_for_best_model.value_or("loss");
  // Hugging Face knows only the first; a perplexity or an error rate that was made great would be an accident.
  bool falls = false;
  for (const char* ending : {"loss", "perplexity", "wer", "cer"}) falls = falls || metric.name.ends_with(ending);
  metric.greater_is_better = config.greater_is_better.value_or(!falls);
  if (metric.name.rfind("eval_", 0) != 0) metric.name = "eval_" + metric.name;
  return metric;
}

std::int64_t validation_count(const RunConfig& config, std::int64_t samples) {
  const double split = config.validation_split;
  if (split == 0) return 0;
  const auto count = split < 1 ? std::max<std::int64_t>(1, std::llround(split * static_cast<double>(samples)))
                               : static_cast<std::int64_t>(split);
  if (count < samples) return count;
  throw usage_error(fmt::format("`validation_split` sets {} samples aside, and there are {}", count, samples))
      .at(config.source_of("validation_split"))
      .mend("set fewer aside, or give validation_files");
}

std::vector<std::filesystem::path> resolve_files(const RunConfig& config, const std::string& key) {
  check(key == "train_files" || key == "validation_files" || key == "test_files", "resolve_files knows three keys");
  std::vector<std::filesystem::path> files;
  for (const std::string& pattern : key == "train_files"        ? config.train_files
                                    : key == "validation_files" ? config.validation_files
                                                                : config.test_files) {
    const auto found = expand_glob(pattern);
    if (found.empty())
      throw usage_error(fmt::format("`{}`: no file matches '{}'", key, pattern))
          .at(config.source_of(key))
          .mend("check the path; it is relative to the folder that the command runs in");
    for (const auto& file : found) {
      if (std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
    }
  }
  return files;
}

void require_training_inputs(const RunConfig& config) {
  if (!config.model && !config.from_scratch)
    throw usage_error("no model is given").mend("give `model` (a folder), or `from_scratch` and `model_config`");
  if (config.from_scratch && !config.model && !config.model_config)
    throw usage_error("`from_scratch` needs the model's shape")
        .at(config.source_of("from_scratch"))
        .mend("give `model_config` (a config.json or a map), or `model` (a folder with one)");
  if (!config.model && !config.tokenizer)
    throw usage_error("no tokenizer is given").mend("give `tokenizer` (a folder or file), or `model` (a folder)");
  if (config.train_files.empty()) throw usage_error("no training data is given").mend("give `train_files`");
}

}  // namespace convoy
