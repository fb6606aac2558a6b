#include "train/run_data.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "config/resolve.h"
#include "train/run_setup.h"

namespace convoy {
namespace {

SourceOptions source_options(const RunConfig& config, const std::string& key) {
  SourceOptions options;
  for (const std::filesystem::path& path : resolve_files(config, key)) options.paths.push_back(path.string());
  switch (config.data_format) {
    case DataFormat::kAuto:
      options.format = SourceFormat::kAuto;
      break;
    case DataFormat::kJsonl:
      options.format = SourceFormat::kJsonLines;
      break;
    case DataFormat::kText:
      options.format = SourceFormat::kText;
      break;
    case DataFormat::kCsv:
      options.format = SourceFormat::kCsv;
      break;
    case DataFormat::kTsv:
      options.format = SourceFormat::kTsv;
      break;
    case DataFormat::kParquet:
      options.format = SourceFormat::kParquet;
      break;
  }
  switch (config.text_mode) {
    case TextMode::kFile:
      options.text_unit = TextUnit::kFile;
      break;
    case TextMode::kParagraph:
      options.text_unit = TextUnit::kParagraph;
      break;
    case TextMode::kLine:
      options.text_unit = TextUnit::kLine;
      break;
  }
  options.fields.text = config.text_field;
  options.skip_bad_samples = config.skip_bad_samples;
  return options;
}

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

EncodeSettings encode_settings(const RunConfig& config, const Tokenizer& tokenizer) {
  EncodeSettings settings;
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
  return !config.validation_files.empty() || config.validation_split > 0;
}

namespace {

// Opens the files of a key, as tokens or as recordings.
class DataOpener {
 public:
  DataOpener(const RunConfig& config, const Tokenizer& tokenizer, std::int64_t vocab, const TrainShape& shape,
             const ModelSource* hears)
      : config_(config), tokenizer_(tokenizer), shape_(shape), hears_(hears) {
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
    EncodeSettings settings = encode_settings(config_, tokenizer_);
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

void set_rows(const RunConfig& config, const TrainShape& shape, bool hears, RunData& data) {
  data.rows.row_length = shape.seq;
  data.rows.mode = hears ? RowMode::kPad : row_mode(config.packing);
  data.rows.overlong = config.too_long == TooLong::kSplit ? Overlong::kSplit : Overlong::kTruncate;
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

RunData open_data(const RunConfig& config, const Tokenizer& tokenizer, std::int64_t vocab, const TrainShape& shape,
                  Communicator& communicator, const ModelSource* hears) {
  DataOpener opener(config, tokenizer, vocab, shape, hears);
  opener.make_encoder(cache_folder(config), false);
  RunData data;
  const bool first = communicator.rank() == 0;
  if (!first) communicator.barrier();
  data.train = opener.open("train_files", data.train_speech);
  log_info("training data: {}", data.train->report().text());
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
  set_rows(config, shape, hears != nullptr, data);
  return data;
}

RunData open_evaluation_data(const RunConfig& config, const Tokenizer& tokenizer, std::int64_t vocab,
                             const TrainShape& shape, bool all_targets, Communicator& communicator,
                             const ModelSource* hears) {
  DataOpener opener(config, tokenizer, vocab, shape, hears);
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
  set_rows(config, shape, hears != nullptr, data);
  return data;
}

std::unique_ptr<Loader> RunData::training_loader(const Cursor& start) const {
  LoaderOptions options = loading;
  if (train_speech) options.complete = [source = train_speech](Batch& batch) { source->complete(batch); };
  return std::make_unique<Loader>(train, train_documents, rows, options, start);
}

std::unique_ptr<Loader> RunData::validation_loader(const Cursor& start) const {
  LoaderOptions options = evaluation_options(loading);
  options.rows = eval_rows;
  options.accumulation = 1;
  options.period = 1;
  if (validation_speech) options.complete = [source = validation_speech](Batch& batch) { source->complete(batch); };
  return std::make_unique<Loader>(validation, validation_documents, rows, options, start);
}

std::string RunData::fingerprint() const {
  Hasher hasher;
  const TokenData& data = train ? *train : *validation;
  hasher.add(fmt::format("{:016x} {} {} {} {} {} {}", data.key(), rows.row_length, name_of(rows.mode),
                         name_of(rows.overlong), rows.window, loading.shuffle, loading.drop_last));
  hasher.add(std::as_bytes(std::span(train ? train_documents : validation_documents)));
  return hex64(hasher.value());
}

}  // namespace convoy
