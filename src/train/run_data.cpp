#include "train/run_data.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "config/resolve.h"

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

}  // namespace

bool evaluates(const RunConfig& config) {
  return !config.validation_files.empty() || config.validation_split > 0 || !config.test_files.empty();
}

RunData open_data(const RunConfig& config, const Tokenizer& tokenizer, std::int64_t vocab, const TrainShape& shape,
                  Communicator& communicator, const TaskSetup& task) {
  if (tokenizer.vocab_size() > vocab) {
    throw usage_error(
        fmt::format("the tokenizer has {} tokens, the model's vocabulary {}", tokenizer.vocab_size(), vocab))
        .at(config.source_of("tokenizer"))
        .mend("use the tokenizer that belongs to the model, or give a from-scratch model as large a vocab_size");
  }
  EncodeSettings settings;
  settings.task = task.encoding;
  const bool has_task = task.encoding.kind != TaskEncoding::Kind::kNone;
  settings.task.sequence = shape.seq;
  if (has_task) {
    settings.append_eos = false;
  } else {
    settings.chat_format = chat_format(config, tokenizer);
  }
  if (!has_task && !tokenizer.eos_id()) {
    settings.append_eos = false;
    log_warning(
        "the tokenizer names no end-of-sequence token: documents end without one, and the model will not learn to "
        "stop");
  }
  const SampleEncoder encoder(tokenizer, settings);
  RunData data;
  const bool first = communicator.rank() == 0;
  if (!first) communicator.barrier();
  data.train = load_or_tokenize(cache_folder(config), source_options(config, "train_files"), encoder);
  log_info("training data: {}", data.train->report().text());
  // The first rank has tokenised all there is before the others look for it.
  if (!config.test_files.empty())
    data.test = load_or_tokenize(cache_folder(config), source_options(config, "test_files"), encoder);
  const auto seed = static_cast<std::uint64_t>(config.seed);
  if (!config.validation_files.empty()) {
    data.validation = load_or_tokenize(cache_folder(config), source_options(config, "validation_files"), encoder);
    if (first) communicator.barrier();
    log_info("validation data: {}", data.validation->report().text());
    data.train_documents = all_documents(data.train->documents());
    data.validation_documents = all_documents(data.validation->documents());
  } else {
    if (first) communicator.barrier();
    SplitOptions split;
    split.validation_count = validation_count(config, data.train->documents());
    split.seed = seed;
    Split parts = split_documents(data.train->documents(), split);
    data.train_documents = std::move(parts.train);
    data.validation_documents = std::move(parts.validation);
    if (!data.validation_documents.empty()) data.validation = data.train;
  }
  data.rows.row_length = shape.seq;
  data.rows.mode = row_mode(config.packing);
  data.rows.overlong = config.too_long == TooLong::kSplit ? Overlong::kSplit : Overlong::kTruncate;
  if (has_task) {
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
  data.loading.seed = config.data_seed ? static_cast<std::uint64_t>(*config.data_seed) : seed;
  data.loading.shuffle = config.train_sampling_strategy == SampleOrder::kRandom;
  data.loading.drop_last = config.dataloader_drop_last;
  data.eval_rows = config.per_device_eval_batch_size;
  return data;
}

std::unique_ptr<Loader> RunData::training_loader(const Cursor& start) const {
  return std::make_unique<Loader>(train, train_documents, rows, loading, start);
}

std::unique_ptr<Loader> RunData::evaluation_loader(const std::shared_ptr<const TokenData>& data,
                                                   const std::vector<DocumentId>& documents,
                                                   const Cursor& start) const {
  LoaderOptions options = evaluation_options(loading);
  options.rows = eval_rows;
  options.accumulation = 1;
  options.period = 1;
  return std::make_unique<Loader>(data, documents, rows, options, start);
}

std::unique_ptr<Loader> RunData::validation_loader(const Cursor& start) const {
  return evaluation_loader(validation, validation_documents, start);
}

std::unique_ptr<Loader> RunData::test_loader(const Cursor& start) const {
  return evaluation_loader(test, all_documents(test->documents()), start);
}

std::string RunData::fingerprint() const {
  Hasher hasher;
  hasher.add(fmt::format("{:016x} {} {} {} {} {} {}{}", train->key(), rows.row_length, name_of(rows.mode),
                         name_of(rows.overlong), rows.window, loading.shuffle, loading.drop_last,
                         rows.parts > 0 ? fmt::format(" {}", rows.parts) : ""));
  hasher.add(std::as_bytes(std::span(train_documents)));
  return hex64(hasher.value());
}

}  // namespace convoy
