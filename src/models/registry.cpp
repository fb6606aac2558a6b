#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/suggest.h"
#include "models/decoder_config.h"
#include "models/front_end.h"
#include "models/glm_asr.h"
#include "models/gpt2.h"
#include "models/task_head.h"
#include "models/whisper.h"

namespace convoy {
namespace {

using Maker = std::unique_ptr<Model> (*)(const std::string& type, const ConfigReader& config,
                                         const ModelOptions& options);

std::unique_ptr<Model> decoder(const std::string& type, const ConfigReader& config, const ModelOptions& options) {
  return make_decoder(read_decoder_config(type, config, options), nullptr);
}

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> all = {
      {"llama", decoder},
      {"qwen2", decoder},
      {"qwen3", decoder},
      {"glm", decoder},
      {"glm4", decoder},
      {"chatglm", decoder},
      {"glmasr", [](const std::string&, const ConfigReader& config,
                    const ModelOptions& options) { return make_glm_asr(config, options); }},
      {"whisper", [](const std::string&, const ConfigReader& config,
                     const ModelOptions& options) { return make_whisper(read_whisper_config(config, options)); }},
      {"gpt2", [](const std::string&, const ConfigReader& config,
                  const ModelOptions&) { return make_gpt2(read_gpt2_config(config)); }},
      {"openai-gpt", [](const std::string&, const ConfigReader& config, const ModelOptions&) {
         return make_gpt2(read_gpt1_config(config));
       }}};
  return all;
}

ModelOptions::Head head_of(const Json& config, const ModelOptions& options) {
  using Head = ModelOptions::Head;
  if (options.head != Head::kAsStored) return options.head;
  const auto names = config.find("architectures");
  if (names == config.end() || !names->is_array() || names->empty() || !names->front().is_string())
    return Head::kLanguageModel;
  const auto name = names->front().get<std::string>();
  if (name.ends_with("DoubleHeadsModel")) return Head::kChoice;
  return name.ends_with("ForSequenceClassification") ? Head::kClasses : Head::kLanguageModel;
}

// Hugging Face's SequenceSummary, as the double-heads models use it.
TaskHead choice_head(const ConfigReader& config, const ModelOptions& options) {
  config.only("summary_type", "cls_index", "the choice is made from the token that ends each alternative");
  config.only("summary_use_proj", true, "the choice needs a projection to scores");
  config.only("summary_proj_to_labels", true, "the choice needs one score for each alternative");
  if (config.has("summary_activation")) config.only("summary_activation", "", "set it to null");
  return {TaskHead::Kind::kChoice, options.outputs > 0 ? options.outputs : 2,
          config.number("summary_first_dropout", 0.1)};
}

TaskHead class_head(const Json& config, const ConfigReader& reader, const ModelOptions& options) {
  std::int64_t classes = options.outputs;
  const auto names = config.find("id2label");
  if (classes == 0 && names != config.end() && names->is_object()) classes = static_cast<std::int64_t>(names->size());
  if (classes == 0) classes = reader.positive("num_labels", 2);
  if (classes < 2) {
    throw usage_error("a classification head needs at least two classes; regression is not supported")
        .at(reader.where());
  }
  return {TaskHead::Kind::kClasses, classes, 0};
}

std::unique_ptr<Model> with_head(Maker maker, const std::string& type, const Json& config, const std::string& where,
                                 const ModelOptions& options, TaskHead::Kind kind) {
  const bool choice = kind == TaskHead::Kind::kChoice;
  if (headed_architecture(type, kind).empty()) {
    throw usage_error(
        fmt::format("'model_type' {} has no {} head", type, choice ? "multiple-choice" : "classification"))
        .at(where)
        .mend(choice ? "gpt2 and openai-gpt have one" : "convert the folder to its Hugging Face layout first");
  }
  Json adapted = config;
  if (!choice) adapted["tie_word_embeddings"] = true;  // a classifier has no language-model head
  const ConfigReader reader(adapted, where);
  const TaskHead head = choice ? choice_head(reader, options) : class_head(config, reader, options);
  return make_headed_model(maker(type, reader, options), head, reader.number("initializer_range", 0.02),
                           options.added_tokens);
}

}  // namespace

std::vector<std::string> known_models() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : makers()) names.push_back(name);
  return names;
}

std::unique_ptr<Model> make_model(const Json& config, const std::string& where, const ModelOptions& options) {
  if (!config.is_object()) throw usage_error("a model configuration should be a JSON object").at(where);
  const ConfigReader reader(config, where);
  const std::string type = reader.text("model_type");
  const auto maker = makers().find(type);
  if (maker != makers().end()) {
    switch (head_of(config, options)) {
      case ModelOptions::Head::kChoice:
        return with_head(maker->second, type, config, where, options, TaskHead::Kind::kChoice);
      case ModelOptions::Head::kClasses:
        return with_head(maker->second, type, config, where, options, TaskHead::Kind::kClasses);
      default:
        return maker->second(type, reader, options);
    }
  }
  const std::vector<std::string> known = known_models();
  throw usage_error(fmt::format("'model_type' {} is not supported{}", type, did_you_mean(type, known)))
      .at(where)
      .mend(fmt::format("supported: {}", fmt::join(known, ", ")));
}

}  // namespace convoy
