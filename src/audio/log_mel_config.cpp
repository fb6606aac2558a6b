// Settings of the features, from a model's folder.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "audio/log_mel.h"
#include "base/error.h"

namespace convoy {
namespace {

Error wrong(const std::string& key, const Json& value, std::string_view wanted, const std::string& name) {
  return usage_error(fmt::format("{} is {}, not {}", key, value.dump().substr(0, 60), wanted)).at(name);
}

int integer(const Json& json, const std::string& key, int otherwise, const std::string& name) {
  const auto at = json.find(key);
  if (at == json.end() || at->is_null()) return otherwise;
  if (!at->is_number_integer() || *at < 0 || *at > std::numeric_limits<int>::max())
    throw wrong(key, *at, "a whole number", name);
  return at->get<int>();
}

}  // namespace

LogMelConfig read_log_mel_config(const Json& json, const std::string& name) {
  if (!json.is_object()) throw usage_error("the settings of the features are not an object").at(name);
  if (const auto nested = json.find("feature_extractor"); nested != json.end() && nested->is_object())
    return read_log_mel_config(*nested, name + ": feature_extractor");
  if (const auto type = json.find("feature_extractor_type"); type != json.end() && *type != "WhisperFeatureExtractor") {
    throw wrong("feature_extractor_type", *type, "\"WhisperFeatureExtractor\", the one kind of features there is",
                name);
  }
  LogMelConfig config;
  config.feature_size = integer(json, "feature_size", config.feature_size, name);
  config.sampling_rate = integer(json, "sampling_rate", config.sampling_rate, name);
  config.hop_length = integer(json, "hop_length", config.hop_length, name);
  config.n_fft = integer(json, "n_fft", config.n_fft, name);
  config.chunk_length = integer(json, "chunk_length", config.chunk_length, name);
  if (const auto flag = json.find("do_normalize"); flag != json.end() && !flag->is_null()) {
    if (!flag->is_boolean()) throw wrong("do_normalize", *flag, "true or false", name);
    config.do_normalize = flag->get<bool>();
  }
  for (const char* key : {"dither", "padding_value"}) {
    if (const auto at = json.find(key); at != json.end() && !at->is_null() && *at != 0)
      throw wrong(key, *at, "0", name);
  }
  if (const auto side = json.find("padding_side"); side != json.end() && *side != "right")
    throw wrong("padding_side", *side, "\"right\"", name);
  try {
    config.validate();
  } catch (Error& failure) {
    throw failure.at(name);
  }
  return config;
}

LogMelConfig read_log_mel_config(const std::filesystem::path& folder) {
  for (const char* file : {"preprocessor_config.json", "processor_config.json"}) {
    if (std::filesystem::exists(folder / file))
      return read_log_mel_config(read_json(folder / file), (folder / file).string());
  }
  throw usage_error("the folder has no preprocessor_config.json")
      .at(folder.string())
      .mend("fetch it with the model's other files: it says how its features are made");
}

}  // namespace convoy
