#include "train/run_data.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "config/resolve.h"
#include "train/run_setup.h"

namespace convoy {
namespace {

// The format whose tokens the tokenizer has.
std::optional<ChatFormat> recognise_chat_format(const Tokenizer& tokenizer) {
  const auto has = [&](const char* token) { return tokenizer.token_to_id(token).has_value(); };
  if (has("[gMASK]") && has("<sop>") && has("<|assistant|>")) return ChatFormat::kGlm4;
  if (has("<|start_header_id|>") && has("<|eot_id|>")) return ChatFormat::kLlama3;
  if (has("<|im_start|>") && has("<|im_end|>")) return has("<think>") ? ChatFormat::kQwen3 : ChatFormat::kChatMl;
  return std::nullopt;
}

std::optional<ChatFormat> chat_format(const RunConfig& config, const Tokenizer& tokenizer) {
  switch (config.chat_format) {
    case ChatSetting::kNone:
      return std::nullopt;
    case ChatSetting::kTemplate:
      return std::nullopt;
    case ChatSetting::kAuto:
      return recognise_chat_format(tokenizer);
    case ChatSetting::kGlm4:
      return ChatFormat::kGlm4;
    case ChatSetting::kChatMl:
      return ChatFormat::kChatMl;
    case ChatSetting::kQwen2:
      return ChatFormat::kQwen2;
    case ChatSetting::kQwen25:
      return ChatFormat::kQwen25;
    case ChatSetting::kQwen3:
      return ChatFormat::kQwen3;
    case ChatSetting::kLlama3:
      return ChatFormat::kLlama3;
    case ChatSetting::kLlama31:
      return ChatFormat::kLlama31;
  }
  return std::nullopt;
}

// The template of the tokenizer's folder, where conversations go by it.
std::optional<ChatTemplate> chat_template(const RunConfig& config) {
  if (config.chat_format != ChatSetting::kAuto && config.chat_format != ChatSetting::kTemplate) return std::nullopt;
  const std::filesystem::path path = tokenizer_path(config);
  std::optional<ChatTemplate> found = ChatTemplate::find(path);
  if (!found && config.chat_format == ChatSetting::kTemplate) {
    throw usage_error("the model folder has no chat template")
        .at(path.string())
        .mend("add its chat_template.jinja, or name a chat_format");
  }
  return found;
}

RowMode row_mode(PackingMode mode) {
  switch (mode) {
    case PackingMode::kPack:
      return RowMode::kPack;
    case PackingMode::kPad:
      return RowMode::kPad;
    case PackingMode::kConcat:
      return RowMode::kConcat;
  }
  return RowMode::kPack;
}

std::filesystem::path cache_folder(const RunConfig& config) {
  return config.cache_dir ? std::filesystem::path(*config.cache_dir)
                          : std::filesystem::path(config.output_dir) / "cache";
}

EncodeSettings encode_settings(const RunConfig& config, const Tokenizer& tokenizer, const TaskEncoding& task,
                               std::int64_t sequence) {
  EncodeSettings settings;
  if (task.kind != TaskEncoding::Kind::kNone) {
    settings.task = task;
    settings.task.sequence = sequence;
    settings.append_eos = false;
    return settings;
  }
  settings.chat_template = chat_template(config);
  if (!settings.chat_template) settings.chat_format = chat_format(config, tokenizer);
  if (!tokenizer.eos_id()) {
    settings.append_eos = false;
    log_warning(
        "the tokenizer names no end-of-sequence token: documents end without one, and the model will not learn to "
        "stop");
  }
  return settings;
}

}  // namespace

bool evaluates(const RunConfig& config) {
  return !config.validation_files.empty() || config.validation_split > 0 || !config.test_files.empty();
}

namespace {

// Opens the files of a key, as tokens or as recordings.
class DataOpener {
 public:
  DataOpener(const RunConfig& config, const Tokenizer& tokenizer, const ModelSource& source, const TrainShape& shape)
      : config_(config),
        tokenizer_(tokenizer),
        source_(source),
        shape_(shape),
        hears_(source.model->audio() ? &source : nullptr) {
    const std::int64_t vocab = source.model->vocab_size();
    if (tokenizer.vocab_size() <= vocab) return;
    throw usage_error(
        fmt::format("the tokenizer has {} tokens, the model's vocabulary {}", tokenizer.vocab_size(), vocab))
        .at(config.source_of("tokenizer"))
        .mend("use the tokenizer that belongs to the model, or give a from-scratch model as large a vocab_size");
  }
  // `folder`: of the cache; none keeps the tokens in memory.
  void make_encoder(std::optional<std::filesystem::path> folder, bool all_targets) {
    folder_ = std::move(folder);
    if (hears_ != nullptr) return;
    EncodeSettings settings = encode_settings(config_, tokenizer_, source_.task.encoding, shape_.seq);
    settings.all_targets = all_targets;
    encoder_.emplace(tokenizer_, std::move(settings));
  }
  std::shared_ptr<const TokenData> open(const std::string& key, std::shared_ptr<const SpeechSource>& speech) const {
    if (encoder_ && folder_) return load_or_tokenize(*folder_, source_options(config_, key), *encoder_);
    if (encoder_) return tokenize_to_memory(source_options(config_, key), *encoder_);
    SpeechData opened = open_speech(config_, key, tokenizer_, *hears_, shape_);
    speech = std::move(opened.source);
    return opened.tokens;
  }

 private:
  const RunConfig& config_;
  const Tokenizer& tokenizer_;
  const ModelSource& source_;
  const TrainShape& shape_;
  const ModelSource* hears_;
  std::optional<std::filesystem::path> folder_;
  std::optional<SampleEncoder> encoder_;
};

void split_off(const RunConfig& config, RunData& data) {
  SplitOptions split;
  split.validation_count = validation_count(config, data.train->documents());
  split.seed = static_cast<std::uint64_t>(config.seed);
  Split parts = split_documents(data.train->documents(), split);
  data.train_documents = std::move(parts.train);
  data.validation_documents = std::move(parts.validation);
  if (data.validation_documents.empty()) return;
  data.validation = data.train;
  data.validation_speech = data.train_speech;
}

void set_rows(const RunConfig& config, const TrainShape& shape, const ModelSource& source, RunData& data) {
  data.rows.row_length = shape.seq;
  data.rows.mode = source.model->audio() ? RowMode::kPad : row_mode(config.packing);
  data.rows.overlong = config.too_long == TooLong::kSplit ? Overlong::kSplit : Overlong::kTruncate;
  if (source.task.encoding.kind != TaskEncoding::Kind::kNone) {
    data.rows.parts = shape.rows_per_item;
    data.rows.row_length = shape.seq * shape.rows_per_item;
    data.rows.mode = RowMode::kPad;
    data.rows.overlong = Overlong::kTruncate;
  }
  data.loading.rows = config.per_device_train_batch_size;
  data.loading.accumulation = shape.accumulation;
  data.loading.world = shape.zero.world;
  data.loading.rank = shape.zero.rank;
  data.loading.period = shape.reduce_period();
  data.loading.seed = static_cast<std::uint64_t>(config.data_seed.value_or(config.seed));
  data.loading.shuffle = config.train_sampling_strategy == SampleOrder::kRandom;
  data.loading.drop_last = config.dataloader_drop_last;
  data.eval_rows = config.per_device_eval_batch_size;
}

}  // namespace

RunData open_data(const RunConfig& config, const Tokenizer& tokenizer, const ModelSource& source,
                  const TrainShape& shape, Communicator& communicator) {
  DataOpener opener(config, tokenizer, source, shape);
  opener.make_encoder(cache_folder(config), false);
  RunData data;
  const bool first = communicator.rank() == 0;
  if (!first) communicator.barrier();
  data.train = opener.open("train_files", data.train_speech);
  log_info("training data: {}", data.train->report().text());
  // The first rank has tokenised all there is before the others look for it.
  if (!config.test_files.empty()) {
    data.test = opener.open("test_files", data.test_speech);
    log_info("test data: {}", data.test->report().text());
  }
  if (!config.validation_files.empty()) {
    data.validation = opener.open("validation_files", data.validation_speech);
    if (first) communicator.barrier();
    log_info("validation data: {}", data.validation->report().text());
    data.train_documents = all_documents(data.train->documents());
    data.validation_documents = all_documents(data.validation->documents());
  } else {
    if (first) communicator.barrier();
    split_off(config, data);
  }
  set_rows(config, shape, source, data);
  return data;
}

void use_buckets(const RunConfig& config, const ModelSource& source, RunData& data, TrainShape& shape) {
  if (config.duration_buckets.empty()) return;
  std::vector<SpeechSize> sizes;
  for (const auto* speech : {&data.train_speech, &data.validation_speech, &data.test_speech}) {
    if (*speech && (speech == &data.train_speech || *speech != data.train_speech))
      sizes.insert(sizes.end(), (*speech)->sizes().begin(), (*speech)->sizes().end());
  }
  data.buckets = choose_buckets(config, source.model->audio().value(), shape, sizes);
  set_buckets(data.buckets, shape);
  set_rows(config, shape, source, data);
  data.loading.rows = 1;
  for (const BatchShape& each : data.buckets->shapes) data.loading.rows = std::max(data.loading.rows, each.rows);
  data.eval_rows = data.loading.rows;
}

std::optional<SpeechBuckets> plan_buckets(const RunConfig& config, const ModelSource& source, const TrainShape& shape) {
  if (config.duration_buckets.empty()) return std::nullopt;
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(tokenizer_path(config));
  std::vector<SpeechSize> sizes;
  for (const auto& [key, files] :
       {std::pair{"train_files", &config.train_files}, std::pair{"validation_files", &config.validation_files},
        std::pair{"test_files", &config.test_files}}) {
    if (files->empty()) continue;
    const SpeechData opened = open_speech(config, key, *tokenizer, source, shape);
    sizes.insert(sizes.end(), opened.source->sizes().begin(), opened.source->sizes().end());
  }
  return choose_buckets(config, source.model->audio().value(), shape, sizes);
}

RunData open_evaluation_data(const RunConfig& config, const Tokenizer& tokenizer, const ModelSource& source,
                             const TrainShape& shape, bool all_targets, Communicator& communicator) {
  DataOpener opener(config, tokenizer, source, shape);
  std::optional<std::filesystem::path> folder;
  if (config.cache_dir) folder = *config.cache_dir;
  opener.make_encoder(folder, all_targets);
  RunData data;
  const bool first = communicator.rank() == 0;
  if (folder && !first) communicator.barrier();
  if (!config.validation_files.empty()) {
    data.validation = opener.open("validation_files", data.validation_speech);
    data.validation_documents = all_documents(data.validation->documents());
  } else {
    data.train = opener.open("train_files", data.train_speech);
    split_off(config, data);
  }
  if (folder && first) communicator.barrier();
  log_info("data: {}", (data.validation ? data.validation : data.train)->report().text());
  set_rows(config, shape, source, data);
  return data;
}

// Rows in buckets, and the features of a micro-batch of any.
void RunData::hear(const std::shared_ptr<const SpeechSource>& speech, LoaderOptions& options) const {
  if (!speech) return;
  if (!buckets) {
    options.complete = [speech](Batch& batch) { speech->complete(batch); };
    return;
  }
  options.buckets = buckets->rows(speech->sizes());
  options.complete = [speech, shapes = buckets->shapes](Batch& batch) {
    const BatchShape& shape = shapes[static_cast<std::size_t>(batch.bucket)];
    speech->complete(batch, {shape.audio_windows, shape.audio_frames});
  };
}

std::unique_ptr<Loader> RunData::training_loader(const Cursor& start) const {
  LoaderOptions options = loading;
  hear(train_speech, options);
  return std::make_unique<Loader>(train, train_documents, rows, options, start);
}

std::unique_ptr<Loader> RunData::evaluation_loader(const std::shared_ptr<const TokenData>& data,
                                                   const std::shared_ptr<const SpeechSource>& speech,
                                                   const std::vector<DocumentId>& documents,
                                                   const Cursor& start) const {
  LoaderOptions options = evaluation_options(loading);
  options.rows = eval_rows;
  options.accumulation = 1;
  options.period = 1;
  hear(speech, options);
  return std::make_unique<Loader>(data, documents, rows, options, start);
}

std::unique_ptr<Loader> RunData::validation_loader(const Cursor& start) const {
  return evaluation_loader(validation, validation_speech, validation_documents, start);
}

std::unique_ptr<Loader> RunData::test_loader(const Cursor& start) const {
  return evaluation_loader(test, test_speech, all_documents(test->documents()), start);
}

std::string RunData::fingerprint() const {
  Hasher hasher;
  const TokenData& data = train ? *train : *validation;
  hasher.add(fmt::format("{:016x} {} {} {} {} {} {}{}", data.key(), rows.row_length, name_of(rows.mode),
                         name_of(rows.overlong), rows.window, loading.shuffle, loading.drop_last,
                         rows.parts > 0 ? fmt::format(" {}", rows.parts) : ""));
  hasher.add(std::as_bytes(std::span(train ? train_documents : validation_documents)));
  if (buckets) {
    hasher.add(fmt::format(" {}", loading.accumulation * loading.world));
    for (std::size_t b = 0; b < buckets->shapes.size(); ++b)
      hasher.add(fmt::format(" {} {} {}", buckets->frames[b], buckets->shapes[b].rows, buckets->shapes[b].seq));
  }
  return hex64(hasher.value());
}

}  // namespace convoy
