#include "train/run_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/model_folder.h"
#include "config/resolve.h"
#include "models/task_head.h"
#include "train/run_setup.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kMostClasses = 10000;

std::string family_of(const Json& config) {
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() ? type->get<std::string>() : "";
}

void set_architecture(Json& config, TaskHead::Kind kind) {
  const std::string name = headed_architecture(family_of(config), kind);
  if (!name.empty()) config["architectures"] = Json::array({name});
}

TaskSetup set_up_choice(const RunConfig& config, Json& model_config, const std::string& where, ModelOptions& options) {
  TaskSetup setup;
  setup.encoding.kind = TaskEncoding::Kind::kChoice;
  setup.encoding.alternatives = config.num_choices;
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(tokenizer_path(config));
  auto next = static_cast<TokenId>(tokenizer->vocab_size());
  const auto id_of = [&](const char* token) {
    if (const auto known = tokenizer->token_to_id(token)) return *known;
    setup.added_tokens.emplace_back(token, next);
    return next++;
  };
  setup.encoding.start = id_of(kStartToken);
  setup.encoding.delimiter = id_of(kDelimiterToken);
  setup.encoding.classify = id_of(kClassifyToken);
  const auto vocab = model_config.find("vocab_size");
  if (vocab == model_config.end() || !vocab->is_number_integer())
    throw usage_error("the configuration has no whole 'vocab_size'").at(where);
  const auto stored = vocab->get<std::int64_t>();
  if (next > stored) {
    options.added_tokens = next - stored;
    model_config["vocab_size"] = static_cast<std::int64_t>(next);
  }
  options.head = ModelOptions::Head::kChoice;
  options.outputs = config.num_choices;
  set_architecture(model_config, TaskHead::Kind::kChoice);
  return setup;
}

// Numbers by their size, names by their letters.
bool label_before(const std::string& a, const std::string& b) {
  const auto number = [](const std::string& text) -> std::optional<std::int64_t> {
    std::int64_t value = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
  };
  const auto x = number(a), y = number(b);
  if (x && y) return *x < *y;
  return x.has_value() != y.has_value() ? x.has_value() : a < b;
}

std::vector<std::string> labels_in_files(const RunConfig& config) {
  DataReport report;
  SourceOptions options = source_options(config, "train_files");
  SampleReader reader(options, report);
  std::set<std::string> seen;
  Sample sample;
  while (reader.next(sample)) {
    seen.insert(sample.label);
    if (seen.size() > kMostClasses) {
      throw usage_error(fmt::format("`{}` holds more than {} different labels", config.label_field, kMostClasses))
          .at(config.source_of("label_field"))
          .mend("name the column of the classes in label_field; regression is not supported");
    }
  }
  std::vector<std::string> labels(seen.begin(), seen.end());
  std::sort(labels.begin(), labels.end(), label_before);
  return labels;
}

std::vector<std::string> names_in_config(const Json& config) {
  const auto architectures = config.find("architectures");
  const auto names = config.find("id2label");
  const bool classifier = architectures != config.end() && architectures->is_array() && !architectures->empty() &&
                          architectures->front().is_string() &&
                          architectures->front().get<std::string>().ends_with("ForSequenceClassification");
  if (!classifier || names == config.end() || !names->is_object()) return {};
  std::vector<std::string> list;
  for (std::size_t i = 0; i < names->size(); ++i) {
    const auto name = names->find(std::to_string(i));
    if (name == names->end() || !name->is_string()) return {};
    list.push_back(name->get<std::string>());
  }
  return list;
}

TaskSetup set_up_classes(const RunConfig& config, Json& model_config, const std::string& where, ModelOptions& options) {
  TaskSetup setup;
  setup.encoding.kind = TaskEncoding::Kind::kClasses;
  std::vector<std::string>& names = setup.encoding.classes;
  names = config.class_names;
  if (names.empty()) names = names_in_config(model_config);
  if (names.empty()) {
    names = labels_in_files(config);
    log_info("the training files hold {} classes", names.size());
  }
  if (names.size() < 2) {
    throw usage_error(fmt::format("{} class{} to tell apart", names.size(), names.size() == 1 ? "" : "es"))
        .at(where)
        .mend("name at least two in class_names, and the column of the classes in label_field");
  }
  if (std::set<std::string>(names.begin(), names.end()).size() != names.size())
    throw usage_error("`class_names` names a class twice").at(config.source_of("class_names"));
  options.head = ModelOptions::Head::kClasses;
  options.outputs = static_cast<std::int64_t>(names.size());
  set_architecture(model_config, TaskHead::Kind::kClasses);
  Json by_number = Json::object(), by_name = Json::object();
  for (std::size_t i = 0; i < names.size(); ++i) {
    by_number[std::to_string(i)] = names[i];
    by_name[names[i]] = i;
  }
  model_config["id2label"] = std::move(by_number);
  model_config["label2id"] = std::move(by_name);
  model_config["problem_type"] = "single_label_classification";
  return setup;
}

SourceFormat source_format(DataFormat format) {
  switch (format) {
    case DataFormat::kAuto:
      return SourceFormat::kAuto;
    case DataFormat::kJsonl:
      return SourceFormat::kJsonLines;
    case DataFormat::kText:
      return SourceFormat::kText;
    case DataFormat::kCsv:
      return SourceFormat::kCsv;
    case DataFormat::kTsv:
      return SourceFormat::kTsv;
    case DataFormat::kParquet:
      return SourceFormat::kParquet;
  }
  throw internal_error("an unknown data format");
}

TextUnit text_unit(TextMode mode) {
  switch (mode) {
    case TextMode::kFile:
      return TextUnit::kFile;
    case TextMode::kParagraph:
      return TextUnit::kParagraph;
    case TextMode::kLine:
      return TextUnit::kLine;
  }
  throw internal_error("an unknown text mode");
}

}  // namespace

TaskSetup set_up_task(const RunConfig& config, Json& model_config, const std::string& where, ModelOptions& options) {
  if (!model_config.is_object()) throw usage_error("a model configuration should be a JSON object").at(where);
  switch (config.task) {
    case TaskName::kMultipleChoice:
      return set_up_choice(config, model_config, where, options);
    case TaskName::kClassification:
      return set_up_classes(config, model_config, where, options);
    case TaskName::kCausalLm:
      break;
  }
  options.head = ModelOptions::Head::kLanguageModel;
  return {};
}

void write_extended_tokenizer(const fs::path& from, const fs::path& to,
                              const std::vector<std::pair<std::string, TokenId>>& added) {
  try {
    fs::create_directories(to);
    for (const fs::path& file : files_to_carry(from)) {
      fs::create_directories((to / file).parent_path());
      fs::copy_file(from / file, to / file, fs::copy_options::overwrite_existing);
    }
  } catch (const fs::filesystem_error& failure) {
    throw storage_error(failure.what());
  }
  const fs::path settings = to / "tokenizer_config.json";
  Json json = fs::exists(settings) ? read_json(settings) : Json::object();
  for (const auto& [token, id] : added) {
    json["added_tokens_decoder"][std::to_string(id)] = {{"content", token},     {"lstrip", false},
                                                        {"normalized", false},  {"rstrip", false},
                                                        {"single_word", false}, {"special", true}};
  }
  write_file_atomic(settings, dump_json(json));
}

SourceOptions source_options(const RunConfig& config, const std::string& key) {
  SourceOptions options;
  for (const fs::path& path : resolve_files(config, key)) options.paths.push_back(path.string());
  options.format = source_format(config.data_format);
  options.text_unit = text_unit(config.text_mode);
  options.fields.text = config.text_field;
  options.fields.label = config.label_field;
  options.skip_bad_samples = config.skip_bad_samples;
  if (config.task == TaskName::kMultipleChoice) options.kind = SampleKind::kChoice;
  if (config.task == TaskName::kClassification) options.kind = SampleKind::kLabelled;
  return options;
}

}  // namespace convoy
