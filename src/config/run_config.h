// A training run's settings: one YAML or JSON run file, every key also a command-line flag. Keys carry the names of
// Hugging Face's TrainingArguments where those have one. See docs/configuration.md, which is made from the same table.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace convoy {

enum class Interval : std::uint8_t { kNo, kSteps, kEpoch, kBest };  // kBest: saving only
enum class OptimizerName : std::uint8_t { kAdamW, kAdam, kSgd, kLion, kAdagrad, kOpenAiAdam };
enum class TaskName : std::uint8_t { kCausalLm, kMultipleChoice, kClassification };
enum class DataFormat : std::uint8_t { kAuto, kJsonl, kText, kCsv, kTsv, kParquet };
enum class TextMode : std::uint8_t { kFile, kParagraph, kLine };
enum class ChatSetting : std::uint8_t {
  kAuto,
  kGlm4,
  kChatMl,
  kQwen2,
  kQwen25,
  kQwen3,
  kLlama3,
  kLlama31,
  kNone,
  kTemplate
};
enum class PackingMode : std::uint8_t { kPack, kPad, kConcat };
enum class TooLong : std::uint8_t { kSplit, kTruncate };
enum class RecomputeSetting : std::uint8_t { kNone, kSelective, kFull, kFit };
enum class LossAverage : std::uint8_t { kToken, kMicroBatch };
enum class SampleOrder : std::uint8_t { kRandom, kSequential };
enum class OffloadDevice : std::uint8_t { kNone, kCpu };
enum class GradientCompression : std::uint8_t { kNone, kFp16, kBf16, kOneBit };
enum class Verbosity : std::uint8_t { kDebug, kInfo, kWarning, kError };

struct RunConfig {
  // Model
  std::optional<std::string> model;
  bool from_scratch = false;
  std::optional<std::string> model_config;  // a path, or the JSON text of an inline map (it starts with '{')
  std::optional<std::string> tokenizer;
  std::optional<DType> dtype;  // f32, bf16 or f16; see resolve_dtype
  std::optional<double> rope_theta;
  std::optional<std::int64_t> lora_rank;
  std::optional<double> lora_alpha;
  double lora_dropout = 0;
  bool use_rslora = false;
  std::vector<std::string> target_modules, exclude_modules, layers_to_transform, modules_to_save;
  std::optional<std::string> adapter;
  std::vector<std::string> freeze;
  bool train_pad_row = false;
  bool freeze_encoder = false;

  // Task
  TaskName task = TaskName::kCausalLm;
  std::int64_t num_choices = 2;
  double lm_coef = 0.5;  // weight of the language model's loss beside a choice's
  std::vector<std::string> class_names;
  std::string label_field = "label";

  // Data
  std::vector<std::string> train_files, validation_files, test_files;
  DataFormat data_format = DataFormat::kAuto;
  TextMode text_mode = TextMode::kFile;
  std::string text_field = "text";
  ChatSetting chat_format = ChatSetting::kAuto;
  double validation_split = 0;
  std::optional<std::int64_t> seq_length;
  PackingMode packing = PackingMode::kPack;
  TooLong too_long = TooLong::kSplit;
  bool skip_bad_samples = false;
  SampleOrder train_sampling_strategy = SampleOrder::kRandom;
  bool dataloader_drop_last = false;
  std::optional<std::string> cache_dir;
  // Data of models that hear
  std::int64_t audio_windows = 1;
  std::optional<std::string> audio_language;
  std::string audio_task = "transcribe";
  std::int64_t audio_threads = 2;
  std::optional<std::string> audio_cache;
  std::vector<std::string> audio_speeds;
  bool mask_audio_padding = false;
  std::vector<std::string> duration_buckets;  // one number of buckets, or bounds in seconds
  std::optional<double> batch_seconds;
  double mask_time_prob = 0, mask_feature_prob = 0;
  std::int64_t mask_time_length = 10, mask_feature_length = 10;
  std::int64_t time_masks = 0, time_mask_width = 0, feature_masks = 0, feature_mask_width = 0;

  // Predictions of the evaluation
  bool predict_with_generate = false;
  std::optional<std::int64_t> generation_max_length;
  std::int64_t generation_num_beams = 1;
  std::string error_rate_normalization = "basic";

  // Batches and steps
  std::int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8;
  std::int64_t gradient_accumulation_steps = 1;
  double num_train_epochs = 3;
  std::int64_t max_steps = -1;
  std::int64_t seed = 42;
  std::optional<std::int64_t> data_seed;
  LossAverage loss_average = LossAverage::kToken;
  double label_smoothing_factor = 0;
  double z_loss = 0;

  // Optimizer and schedule
  OptimizerName optim = OptimizerName::kAdamW;
  double learning_rate = 5e-5;
  double weight_decay = 0;
  bool decay_bias_norm = false;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  double max_grad_norm = 1;  // 0 = off
  std::string lr_scheduler_type = "linear";
  std::string lr_scheduler_kwargs = "{}";  // JSON text of a map
  double warmup_ratio = 0;
  double warmup_steps = 0;

  // Precision, memory, machine
  std::optional<bool> bf16, fp16;
  bool fp8 = false;  // beside bf16
  RecomputeSetting recompute = RecomputeSetting::kNone;
  std::optional<bool> gradient_checkpointing;
  DType optimizer_states = DType::kF32;
  DType gradient_dtype = DType::kF32;
  bool master_weights = true;
  std::int64_t loss_chunk_rows = 0;
  std::int64_t threads = 0;       // 0 = every core
  std::int64_t memory_limit = 0;  // bytes; 0 = what the machine has
  bool deterministic = true;
  std::string device = "cpu";
  bool tf32 = false;

  // Ranks and sharding
  std::optional<std::int64_t> num_processes;
  std::optional<std::string> deepspeed;  // a file, or the JSON itself
  bool strict_ds = false;
  std::optional<std::int64_t> train_batch_size;  // sequences per optimizer step, of all ranks
  std::int64_t zero_stage = 0;
  std::int64_t reduce_bucket_size = 500'000'000, allgather_bucket_size = 500'000'000;  // elements
  std::optional<bool> overlap_comm;
  std::int64_t stage3_prefetch_bucket_size = 50'000'000, stage3_param_persistence_threshold = 100'000;
  std::int64_t stage3_max_live_parameters = 1'000'000'000, stage3_max_reuse_distance = 1'000'000'000;
  OffloadDevice offload_optimizer = OffloadDevice::kNone, offload_param = OffloadDevice::kNone;
  OffloadDevice offload_activations = OffloadDevice::kNone;
  GradientCompression gradient_compression = GradientCompression::kNone;
  bool sparse_embedding_updates = false;
  std::string gpu_communicator = "auto";
  double timeout = 30;  // seconds
  std::int64_t max_restarts = 0;
  std::optional<std::string> elastic;         // "MIN:MAX" ranks
  std::optional<std::int64_t> scale_lr_from;  // ranks that learning_rate is meant for

  // Loss scaling (fp16)
  double loss_scale = 0;  // 0 = dynamic
  std::int64_t initial_scale_power = 16, loss_scale_window = 1000, hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;

  // Evaluation
  Interval eval_strategy = Interval::kNo;
  std::optional<double> eval_steps;
  double eval_delay = 0;
  bool eval_on_start = false;
  bool load_best_model_at_end = false;
  std::optional<std::string> metric_for_best_model;
  std::optional<bool> greater_is_better;
  std::int64_t early_stopping_patience = 0;  // 0 = off
  double early_stopping_threshold = 0;

  // Checkpoints
  std::string output_dir = "trainer_output";
  bool overwrite_output_dir = false;
  Interval save_strategy = Interval::kSteps;
  double save_steps = 500;
  std::optional<std::int64_t> save_total_limit;
  bool save_only_model = false;
  bool async_save = true;
  std::optional<std::string> resume_from_checkpoint;  // a checkpoint folder; "true" = the newest in output_dir
  bool ignore_data_skip = false;

  // Logging
  Interval logging_strategy = Interval::kSteps;
  double logging_steps = 500;
  bool logging_first_step = false;
  bool logging_nan_inf_filter = true;
  std::vector<std::string> report_to;  // "tensorboard" or nothing
  std::optional<std::string> logging_dir;
  std::optional<std::string> run_name;
  std::optional<std::string> log_file;
  std::optional<std::string> plot;
  std::optional<std::string> ceilings_file;
  Verbosity log_level = Verbosity::kInfo;
  bool disable_tqdm = false;
  bool include_num_input_tokens_seen = false;
  bool print_program = false;
  std::optional<std::int64_t> steps_per_print;
  bool wall_clock_breakdown = false;
  std::optional<std::string> trace;

  // Where each value came from: "run.yaml:12" or "--learning_rate"; a key that is not here has its default.
  std::map<std::string, std::string> sources;
  // What the reader should know: accepted keys without effect and why, old names, overridden flags.
  std::vector<std::string> notes;
  // What the reader asked for and does not get: settings that a DeepSpeed configuration overrules.
  std::vector<std::string> warnings;

  bool reports_to_tensorboard() const { return !report_to.empty(); }
  // "default" or the source.
  std::string source_of(const std::string& key) const;
};

// `args`: flags, and at most one run file (the only argument that belongs to no flag). A flag wins over the file.
// Throws usage errors that name the key, the file and line or the flag, and what would be accepted.
RunConfig parse_run_config(const std::vector<std::string>& args);
// Only a file's text; `name` decides between JSON (ends in .json) and YAML.
RunConfig parse_run_text(const std::string& text, const std::string& name);

// The flags, section by section.
std::string config_help();
// Markdown: every key with its type, default and meaning.
std::string config_reference();
// Every setting as a YAML run file that reads back to the same settings, with the source of each as a comment.
std::string print_resolved(const RunConfig& config);

// Names and values of what all ranks of a job must be told alike: every key but those of one process.
std::vector<std::pair<std::string, std::string>> shared_settings(const RunConfig& config);

// Checks that need more than one key; parse_run_config has called it.
void check_run_config(const RunConfig& config);
// A note for every key that was given and that another setting leaves without effect.
std::vector<std::string> inactive_keys(const RunConfig& config);

}  // namespace convoy
