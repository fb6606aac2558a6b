#include "train/run_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/parallel.h"
#include "comm/communicator.h"
#include "config/resolve.h"
#include "models/freeze.h"
#include "models/name_pattern.h"
#include "plan/memory_report.h"
#include "train/adapter_io.h"
#include "train/weights_io.h"

namespace convoy {
namespace {

OptimizerKind optimizer_kind(OptimizerName name) {
  switch (name) {
    case OptimizerName::kAdamW:
      return OptimizerKind::kAdamW;
    case OptimizerName::kAdam:
      return OptimizerKind::kAdam;
    case OptimizerName::kSgd:
      return OptimizerKind::kSgd;
    case OptimizerName::kLion:
      return OptimizerKind::kLion;
    case OptimizerName::kAdagrad:
      return OptimizerKind::kAdagrad;
    case OptimizerName::kOpenAiAdam:
      return OptimizerKind::kOpenAiAdam;
  }
  throw internal_error("an optimizer without a kernel");
}

RecomputeMode recompute_mode(RecomputeSetting mode) {
  switch (mode) {
    case RecomputeSetting::kNone:
      return RecomputeMode::kNone;
    case RecomputeSetting::kSelective:
      return RecomputeMode::kSelective;
    case RecomputeSetting::kFull:
      return RecomputeMode::kFull;
    case RecomputeSetting::kFit:
      return RecomputeMode::kFit;
  }
  throw internal_error("an unknown recompute mode");
}

std::unique_ptr<Json> read_model_config(const RunConfig& config, std::string& where) {
  if (!config.model_config) {
    throw usage_error("training from scratch needs a model configuration")
        .mend("give --model_config, a config.json or a map in the run file");
  }
  if (config.model_config->starts_with('{')) {
    where = "model_config";
    return std::make_unique<Json>(parse_json(*config.model_config, where));
  }
  std::filesystem::path path = *config.model_config;
  if (std::filesystem::is_directory(path)) path /= "config.json";
  where = path.string();
  return std::make_unique<Json>(read_json(path));
}

// "3" and "4-7" → 3, 4, 5, 6, 7.
std::vector<std::int64_t> layer_numbers(const RunConfig& config) {
  std::vector<std::int64_t> numbers;
  for (const std::string& text : config.layers_to_transform) {
    const std::size_t dash = text.find('-');
    const auto number = [&](std::size_t begin, std::size_t end) {
      std::int64_t value = -1;
      const auto [stop, failure] = std::from_chars(text.data() + begin, text.data() + end, value);
      if (failure != std::errc{} || stop != text.data() + end || value < 0 || value > 100000) {
        throw usage_error(fmt::format("'{}' is neither a layer nor a range of layers", text))
            .at(config.source_of("layers_to_transform"))
            .mend("write 3, or 4-7");
      }
      return value;
    };
    const std::int64_t first = number(0, std::min(dash, text.size()));
    const std::int64_t last = dash == std::string::npos ? first : number(dash + 1, text.size());
    for (std::int64_t layer = first; layer <= last; ++layer) numbers.push_back(layer);
  }
  return numbers;
}

ModuleNames module_names(const RunConfig& config, const char* key, const std::vector<std::string>& given) {
  if (std::none_of(given.begin(), given.end(), NamePattern::is_regex)) return {given, false};
  if (given.size() == 1) return {{given[0].substr(1, given[0].size() - 2)}, true};
  throw usage_error(fmt::format("{} takes a list of names or one regular expression", key))
      .at(config.source_of(key))
      .mend("put all into one expression: /(.*\\.)?(q_proj|v_proj)/");
}

LoraConfig lora_settings(const RunConfig& config) {
  LoraConfig lora;
  lora.rank = config.lora_rank.value_or(lora.rank);
  lora.alpha = config.lora_alpha.value_or(2.0 * static_cast<double>(lora.rank));
  lora.dropout = config.lora_dropout;
  lora.rslora = config.use_rslora;
  if (!config.target_modules.empty()) lora.targets = module_names(config, "target_modules", config.target_modules);
  lora.exclude = module_names(config, "exclude_modules", config.exclude_modules);
  lora.layers = layer_numbers(config);
  lora.modules_to_save = config.modules_to_save;
  return lora;
}

// Freezes weights, or adds adapters, as the settings say.
void choose_trained(const RunConfig& config, ModelSource& source) {
  const bool lora = config.lora_rank || config.adapter;
  if (!config.freeze.empty()) {
    if (lora) {
      throw usage_error("freeze and LoRA exclude each other: LoRA freezes the model's own weights")
          .at(config.source_of("freeze"))
          .mend("leave freeze out; what LoRA is to train besides goes into modules_to_save");
    }
    source.model = freeze(std::move(source.model), config.freeze, config.source_of("freeze"));
  }
  if (!lora) return;
  if (config.lora_rank && config.adapter) {
    throw usage_error("lora_rank says a new adapter and adapter an old one")
        .at(config.source_of("adapter"))
        .mend("leave lora_rank out: the adapter's own adapter_config.json counts");
  }
  LoraConfig settings;
  if (config.adapter) {
    source.adapter_from = *config.adapter;
    source.adapter = std::make_unique<Json>(read_adapter_json(source.adapter_from));
    settings = read_adapter_config(source.adapter_from);
    source.model = add_lora(std::move(source.model), settings, (source.adapter_from / kAdapterConfig).string());
    return;
  }
  settings = lora_settings(config);
  // A task's head that starts fresh is trained whole, as peft does for its task types.
  for (const FileTensor& tensor : source.model->file_tensors()) {
    if (source.model->task_head() == nullptr || !source.model->may_be_missing(tensor.parameter)) continue;
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    auto& saved = settings.modules_to_save;
    if (std::find(saved.begin(), saved.end(), module) == saved.end()) saved.push_back(module);
  }
  source.model = add_lora(std::move(source.model), settings, config.source_of("lora_rank"));
  settings = resolved(settings, *source.model);
  const auto& adapters = lora_adapters(*source.model);
  const bool transposed =
      std::any_of(adapters.begin(), adapters.end(), [](const LoraAdapter& each) { return each.module.transposed; });
  source.adapter = std::make_unique<Json>(lora_config_json(settings, config.model.value_or(""), transposed));
}

// mask_audio_padding is a trait of the model, which its config.json keeps for whoever uses it.
void take_masking(const RunConfig& config, ModelSource& source) {
  if (!config.mask_audio_padding || source.config->value(kMaskAudioPadding, false)) return;
  if (config.lora_rank || config.adapter) {
    throw usage_error("an adapter's folder does not say that its base model masks the padding of audio")
        .at(config.source_of("mask_audio_padding"))
        .mend(fmt::format("add \"{}\": true to the base model's config.json", kMaskAudioPadding));
  }
  (*source.config)[kMaskAudioPadding] = true;
}

// Whether the model that was made knows of it.
void require_hearing(const RunConfig& config, const Model& model) {
  if (model.audio()) return;
  for (const auto& [key, given] : {std::pair{"mask_audio_padding", config.mask_audio_padding},
                                   std::pair{"duration_buckets", !config.duration_buckets.empty()}}) {
    if (!given) continue;
    throw usage_error(fmt::format("{} is for models that hear, not for {}", key, model.family()))
        .at(config.source_of(key))
        .mend("leave it out; packing fills the rows of text models");
  }
}

}  // namespace

ModelSource open_model(const RunConfig& config, bool training) {
  ModelSource source;
  ModelOptions options;
  options.rope_theta = config.rope_theta.value_or(0);
  options.train_pad_row = config.train_pad_row;
  options.freeze_encoder = config.freeze_encoder;
  if (config.from_scratch) {
    source.config = read_model_config(config, source.where);
    take_masking(config, source);
    source.task = set_up_task(config, *source.config, source.where, options);
    source.model = make_model(*source.config, source.where, options);
    source.dtype = resolve_dtype(config, std::nullopt);
    source.stored = source.dtype;
    require_hearing(config, *source.model);
    choose_trained(config, source);
    return source;
  }
  if (!config.model)
    throw usage_error("no model to train").mend("give --model FOLDER, or --from_scratch with --model_config");
  source.folder = std::make_unique<ModelFolder>(*config.model);
  source.config = std::make_unique<Json>(source.folder->config());
  take_masking(config, source);
  source.where = (source.folder->folder() / "config.json").string();
  source.task = set_up_task(config, *source.config, source.where, options);
  source.model = make_model(*source.config, source.where, options);
  require_hearing(config, *source.model);
  source.stored = stored_dtype(match_folder(*source.model, *source.folder));
  source.dtype = training || config.dtype ? resolve_dtype(config, source.stored) : source.stored;
  choose_trained(config, source);
  return source;
}

std::int64_t sequence_length(const RunConfig& config, const Model& model) {
  const std::int64_t length = config.seq_length.value_or(std::min<std::int64_t>(1024, model.max_positions()));
  if (model.positions_are_learned() && length > model.max_positions()) {
    throw usage_error(
        fmt::format("seq_length {} is longer than the model's {} learned positions", length, model.max_positions()))
        .at(config.source_of("seq_length"))
        .mend(fmt::format("take at most {}", model.max_positions()));
  }
  return length;
}

TrainShape train_shape(const RunConfig& config, const ModelSource& source, bool evaluates, int rank, int ranks) {
  TrainShape shape;
  if (config.task == TaskName::kMultipleChoice) {
    shape.rows_per_item = config.num_choices;
    shape.auxiliary_weight = config.lm_coef;
  }
  shape.rows = config.per_device_train_batch_size * shape.rows_per_item;
  shape.seq = sequence_length(config, *source.model);
  shape.accumulation = config.gradient_accumulation_steps;
  shape.eval_rows = evaluates ? config.per_device_eval_batch_size * shape.rows_per_item : 0;
  shape.dtype = source.dtype;
  shape.fp8 = config.fp8;
  shape.recompute = recompute_mode(config.recompute);
  shape.deterministic = config.deterministic;
  shape.optimizer.kind = optimizer_kind(config.optim);
  shape.optimizer.beta1 = config.adam_beta1;
  shape.optimizer.beta2 = config.adam_beta2;
  shape.optimizer.eps = config.adam_epsilon;
  shape.optimizer.momentum = config.momentum;
  shape.optimizer.dampening = config.dampening;
  shape.optimizer.nesterov = config.nesterov;
  shape.optimizer.moment_dtype = config.optimizer_states;
  shape.master_weights = config.master_weights;
  shape.narrow_gradients = narrow_gradients(config, source.dtype);
  shape.has_own_memory = config.device != "cpu";
  shape.offload_optimizer = shape.has_own_memory && config.offload_optimizer == OffloadDevice::kCpu;
  shape.offload_activations = shape.has_own_memory && config.offload_activations == OffloadDevice::kCpu;
  shape.weight_decay = config.weight_decay;
  shape.decay_bias_norm = config.decay_bias_norm;
  shape.max_grad_norm = config.max_grad_norm;
  shape.loss.chunk_rows = std::min(config.loss_chunk_rows, shape.tokens());
  shape.loss.z_loss = config.z_loss;
  shape.loss.label_smoothing = config.label_smoothing_factor;
  shape.seed = static_cast<std::uint64_t>(config.seed);
  shape.zero.stage = static_cast<int>(config.zero_stage);
  shape.zero.world = ranks;
  shape.zero.rank = rank;
  shape.sparse_embeddings = config.sparse_embedding_updates;
  if (const auto audio = source.model->audio()) {
    shape.audio_windows = audio->audio_token < 0 ? 1 : config.audio_windows;
    shape.audio_frames = audio->frames;
  }
  switch (config.gradient_compression) {
    case GradientCompression::kNone:
      break;
    case GradientCompression::kFp16:
      shape.zero.wire = DType::kF16;
      break;
    case GradientCompression::kBf16:
      shape.zero.wire = DType::kBF16;
      break;
    case GradientCompression::kOneBit:
      if (config.zero_stage > 0) {
        throw usage_error(fmt::format("1-bit gradients are not compatible with ZeRO stage {}", config.zero_stage))
            .at(config.source_of("gradient_compression"))
            .mend("use gradient_compression: bf16, or zero_stage: 0");
      }
      if (shape.narrow_gradients) {
        throw usage_error("1-bit gradients and what they lose are of float32, not of gradient_dtype's 16 bits")
            .at(config.source_of("gradient_compression"))
            .mend("set gradient_dtype: f32, or gradient_compression: none");
      }
      shape.zero.one_bit = true;
      break;
  }
  shape.zero.reduce_bucket = config.reduce_bucket_size;
  shape.zero.gather_bucket = config.allgather_bucket_size;
  shape.zero.overlap = config.overlap_comm.value_or(true);
  shape.zero.prefetch_bucket = config.stage3_prefetch_bucket_size;
  shape.zero.persistence_threshold = config.stage3_param_persistence_threshold;
  shape.zero.max_live = config.stage3_max_live_parameters;
  shape.zero.max_reuse_distance = config.stage3_max_reuse_distance;
  shape.zero.offload_param = shape.has_own_memory && config.offload_param == OffloadDevice::kCpu;
  if (shape.zero.offload_param && ranks > 1 && shape.zero.stage < 3) {
    throw usage_error(fmt::format("offload_param keeps each rank's shards of the weights in host memory, and with "
                                  "zero_stage {} they are not sharded",
                                  config.zero_stage))
        .at(config.source_of("offload_param"))
        .mend("use zero_stage: 3, or leave offload_param out");
  }
  return shape;
}

TrainShape evaluation_shape(const RunConfig& config, const ModelSource& source, int rank, int ranks) {
  RunConfig alone = config;  // what concerns gradients and optimizer has no meaning here
  alone.gradient_compression = GradientCompression::kNone;
  alone.offload_optimizer = alone.offload_param = alone.offload_activations = OffloadDevice::kNone;
  alone.fp8 = false;
  alone.gradient_dtype = DType::kF32;
  TrainShape shape = train_shape(alone, source, true, rank, ranks);
  shape.zero.offload_param = shape.has_own_memory && config.offload_param == OffloadDevice::kCpu;
  shape.training = false;
  shape.rows = shape.eval_rows;
  shape.accumulation = 1;
  shape.loss = {};
  shape.loss.chunk_rows = std::min(config.loss_chunk_rows, shape.eval_tokens());
  if (shape.zero.stage < 3) shape.zero.stage = 0;
  return shape;
}

std::filesystem::path tokenizer_path(const RunConfig& config) {
  if (config.tokenizer) return *config.tokenizer;
  if (config.model) return *config.model;
  throw usage_error("no tokenizer").mend("give --tokenizer, a folder or file with tokenizer.json or tokenizer.model");
}

std::size_t communication_memory(int ranks) {
  CommunicatorOptions group;
  group.size = group.local_size = ranks;
  return communication_bytes(group);
}

MemoryLimit memory_limit(const RunConfig& config, int ranks, const Device& device) {
  const std::size_t of_host = available_memory() / static_cast<std::size_t>(ranks);
  const std::optional<std::size_t> own = device.own_memory();
  MemoryLimit limit{own.value_or(of_host)};
  if (own) limit.host = of_host;
  if (config.memory_limit > 0) limit.device = static_cast<std::size_t>(config.memory_limit);
  return limit;
}

void apply_process_settings(const RunConfig& config, int rank, int ranks) {
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  set_threads(config.threads == 0 && ranks > 1 ? std::max(1, cores / ranks) : static_cast<int>(config.threads));
  if (rank > 0) {  // the first rank speaks for all
    set_log_level(LogLevel::kWarning);
    return;
  }
  switch (config.log_level) {
    case Verbosity::kDebug:
      set_log_level(LogLevel::kDebug);
      break;
    case Verbosity::kInfo:
      set_log_level(LogLevel::kInfo);
      break;
    case Verbosity::kWarning:
      set_log_level(LogLevel::kWarning);
      break;
    case Verbosity::kError:
      set_log_level(LogLevel::kError);
      break;
  }
  for (const std::string& warning : config.warnings) log_warning("{}", warning);
  for (const std::string& note : config.notes) log_info("{}", note);
}

}  // namespace convoy
