// What a run's settings mean once the data and the number of ranks are known. Formulas as in Hugging Face's Trainer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace convoy {

// DeepSpeed's rule of train_batch_size = micro-batch · accumulation · ranks: fills in what was not given, and throws a
// usage error with its text and the values that would fit where they do not.
void resolve_batch(RunConfig& config, int ranks);

// Sequences per optimizer step, over all ranks.
std::int64_t global_batch_size(const RunConfig& config, std::int64_t world_size);
// Optimizer steps per epoch from a rank's micro-batches per epoch: the last step of an epoch may have fewer.
std::int64_t steps_per_epoch(const RunConfig& config, std::int64_t micro_batches);
// max_steps if above 0, else ceil(num_train_epochs · steps_per_epoch).
std::int64_t total_steps(const RunConfig& config, std::int64_t per_epoch);
// warmup_steps if above 0 (below 1: ceil(total · it)), else ceil(total · warmup_ratio).
std::int64_t warmup_steps(const RunConfig& config, std::int64_t total);

// Steps between two events: the number itself, or ceil(total · it) if below 1; at least 1.
std::int64_t interval_steps(double value, std::int64_t total);
// eval_steps or, when that is unset, logging_steps.
std::int64_t eval_interval(const RunConfig& config, std::int64_t total);

// f32 from scratch (then `stored` is nothing), else the type of the stored weights; `dtype` wins. Weights stored as
// float16 need a choice: usage error.
DType resolve_dtype(const RunConfig& config, std::optional<DType> stored);

// Whether gradients of matrices have the run's `dtype` (gradient_dtype). Another 16-bit type: usage error.
bool narrow_gradients(const RunConfig& config, DType dtype);

struct WatchedMetric {
  std::string name;  // with its "eval_" prefix
  bool greater_is_better = false;
};
// The metric that load_best_model_at_end, save_strategy best, early stopping or reduce_lr_on_plateau watch.
WatchedMetric best_metric(const RunConfig& config);

// How many of `samples` validation_split sets aside: the count, or round(fraction · samples); at least 1 and leaving at
// least 1, else a usage error. 0 when there is no split.
std::int64_t validation_count(const RunConfig& config, std::int64_t samples);

// The files of train_files, validation_files or test_files (`key`), patterns expanded, each once, in the order given. A
// pattern that names nothing is a usage error.
std::vector<std::filesystem::path> resolve_files(const RunConfig& config, const std::string& key);

// What training needs beyond sound settings: a model or from_scratch with a model_config, and train_files.
void require_training_inputs(const RunConfig& config);

}  // namespace convoy
