#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/suggest.h"
#include "models/decoder_config.h"
#include "models/front_end.h"
#include "models/glm_asr.h"
#include "models/gpt2.h"
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
      {"gpt2", [](const std::string&, const ConfigReader& config, const ModelOptions&) {
         return make_gpt2(read_gpt2_config(config));
       }}};
  return all;
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
  if (maker != makers().end()) return maker->second(type, reader, options);
  const std::vector<std::string> known = known_models();
  throw usage_error(fmt::format("'model_type' {} is not supported{}", type, did_you_mean(type, known)))
      .at(where)
      .mend(fmt::format("supported: {}", fmt::join(known, ", ")));
}

}  // namespace convoy
