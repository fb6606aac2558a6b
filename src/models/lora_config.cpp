#include "models/lora_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "base/error.h"
#include "models/config_reader.h"

namespace convoy {
namespace {

std::regex compiled(const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& failure) {
    throw usage_error(fmt::format("'{}' is no regular expression: {}", text, failure.what()));
  }
}

// peft's rule for rank_pattern and alpha_pattern.
template <typename T>
T value_for(const std::vector<std::pair<std::string, T>>& patterns, const std::string& module, T otherwise) {
  for (const auto& [key, value] : patterns) {
    if (std::regex_match(module, compiled("(.*\\.)?(" + key + ")"))) return value;
  }
  return otherwise;
}

// The number of a module's block: behind the last list, or behind a list of the given name.
std::optional<std::int64_t> layer_of(const std::string& module, const std::vector<std::string>& lists) {
  const auto find = [&](const std::string& expression) -> std::optional<std::int64_t> {
    std::smatch found;
    if (!std::regex_search(module, found, compiled(expression), std::regex_constants::match_continuous))
      return std::nullopt;
    return std::stoll(found[1].str());
  };
  if (lists.empty()) return find(R"(.*\.[^.]*\.(\d{1,9})\.)");
  for (const std::string& list : lists) {
    if (const auto layer = find(fmt::format(R"((?:.*\.)?{}\.(\d{{1,9}})\.)", list))) return layer;
  }
  return std::nullopt;
}

Error malformed(const std::string& key, const char* expected, const std::string& where) {
  return usage_error(fmt::format("'{}' should be {}", key, expected)).at(where);
}

ModuleNames read_names(const Json& config, const std::string& key, const std::string& where) {
  ModuleNames made;
  const auto place = config.find(key);
  if (place == config.end() || place->is_null()) return made;
  if (place->is_string()) {
    made.names = {place->get<std::string>()};
    made.regex = made.names[0] != "all-linear";
    return made;
  }
  if (!place->is_array()) throw malformed(key, "a list of module names or a regular expression", where);
  for (const Json& name : *place) {
    if (!name.is_string()) throw malformed(key, "a list of module names or a regular expression", where);
    made.names.push_back(name.get<std::string>());
  }
  return made;
}

template <typename T>
std::vector<std::pair<std::string, T>> read_patterns(const Json& config, const std::string& key,
                                                     const std::string& where) {
  std::vector<std::pair<std::string, T>> made;
  const auto place = config.find(key);
  if (place == config.end() || place->is_null()) return made;
  if (!place->is_object()) throw malformed(key, "a map from module names to numbers", where);
  for (const auto& [name, value] : place->items()) {
    if (!value.is_number() || value.template get<double>() <= 0 || value.template get<double>() > 1e9)
      throw malformed(key, "a map from module names to positive numbers", where);
    made.emplace_back(name, value.template get<T>());
  }
  return made;
}

std::vector<std::int64_t> read_layers(const Json& config, const std::string& where) {
  const auto place = config.find("layers_to_transform");
  if (place == config.end() || place->is_null()) return {};
  std::vector<std::int64_t> layers;
  const auto take = [&](const Json& value) {
    if (!value.is_number_integer()) throw malformed("layers_to_transform", "an integer or a list of integers", where);
    layers.push_back(value.get<std::int64_t>());
  };
  if (!place->is_array()) {
    take(*place);
    return layers;
  }
  for (const Json& value : *place) take(value);
  return layers;
}

// Settings that would change what is computed and that there is nothing for here.
void refuse_unsupported(const Json& config, const std::string& where) {
  const auto is_set = [](const Json& value) {
    return !(value.is_null() || value == Json(false) || (value.is_structured() && value.empty()));
  };
  for (const char* key :
       {"use_dora", "lora_bias", "layer_replication", "trainable_token_indices", "target_parameters", "use_qalora",
        "use_bdlora", "alora_invocation_tokens", "arrow_config", "kasa_config", "velora_config", "monteclora_config"}) {
    const auto place = config.find(key);
    if (place == config.end() || !is_set(*place)) continue;
    throw usage_error(fmt::format("'{}' is {}: this kind of adapter is not supported", key, place->dump()))
        .at(where)
        .mend("use plain LoRA, or merge the adapter with peft and train the merged model");
  }
}

template <typename T>
Json or_null(const std::vector<T>& values) {
  return values.empty() ? Json(nullptr) : Json(values);
}

Json names_json(const ModuleNames& names) {
  if (names.empty()) return nullptr;
  if (names.regex || names.all_linear()) return names.names[0];
  return names.names;
}

template <typename T>
Json map_json(const std::vector<std::pair<std::string, T>>& pairs) {
  Json map = Json::object();
  for (const auto& [key, value] : pairs) map[key] = value;
  return map;
}

}  // namespace

bool ModuleNames::match(const std::string& module) const {
  if (regex) return std::regex_match(module, compiled(names.at(0)));
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return module == name ||
           (module.size() > name.size() && module.ends_with(name) && module[module.size() - name.size() - 1] == '.');
  });
}

std::int64_t LoraConfig::rank_of(const std::string& module) const {
  return value_for(rank_pattern, module, rank);
}

double LoraConfig::scale_of(const std::string& module) const {
  const auto r = static_cast<double>(rank_of(module));
  return value_for(alpha_pattern, module, alpha) / (rslora ? std::sqrt(r) : r);
}

bool LoraConfig::chooses(const std::string& module) const {
  if (!targets.all_linear() && !targets.match(module)) return false;
  if (!exclude.empty() && exclude.match(module)) return false;
  if (layers.empty()) return true;
  const auto layer = layer_of(module, layers_pattern);
  return layer && std::find(layers.begin(), layers.end(), *layer) != layers.end();
}

LoraConfig read_lora_config(const Json& config, const std::string& where) {
  if (!config.is_object()) throw usage_error("an adapter's configuration should be a JSON object").at(where);
  const ConfigReader reader(config, where);
  if (const std::string type = reader.text("peft_type", "LORA"); type != "LORA") {
    throw usage_error(fmt::format("the adapter is of type {}, only LORA is supported", type)).at(where);
  }
  refuse_unsupported(config, where);
  if (const std::string bias = reader.text("bias", "none"); bias != "none") {
    throw usage_error(fmt::format("'bias' is \"{}\": biases trained beside LoRA are not supported", bias))
        .at(where)
        .mend("train with bias: none");
  }
  LoraConfig made;
  made.rank = reader.positive("r", 8);
  made.alpha = reader.number("lora_alpha", 8);
  made.dropout = reader.number("lora_dropout", 0);
  if (!(made.dropout >= 0 && made.dropout < 1)) throw malformed("lora_dropout", "at least 0 and below 1", where);
  made.rslora = reader.boolean("use_rslora", false);
  const auto init = config.find("init_lora_weights");
  made.gaussian = init != config.end() && init->is_string() && init->get<std::string>() == "gaussian";
  made.targets = read_names(config, "target_modules", where);
  if (made.targets.empty()) {
    throw usage_error("the adapter's configuration names no 'target_modules'")
        .at(where)
        .mend("name the modules that it adapts, or \"all-linear\"");
  }
  made.exclude = read_names(config, "exclude_modules", where);
  made.layers = read_layers(config, where);
  const ModuleNames lists = read_names(config, "layers_pattern", where);
  for (const std::string& name : lists.names) {
    if (!name.empty()) made.layers_pattern.push_back(name);
  }
  made.modules_to_save = read_names(config, "modules_to_save", where).names;
  made.rank_pattern = read_patterns<std::int64_t>(config, "rank_pattern", where);
  made.alpha_pattern = read_patterns<double>(config, "alpha_pattern", where);
  return made;
}

Json lora_config_json(const LoraConfig& config, const std::string& base_model, bool fan_in_fan_out) {
  // peft's keys in its order. Those that newer versions have default to what they mean here.
  Json json = Json::object();
  json["alpha_pattern"] = map_json(config.alpha_pattern);
  json["auto_mapping"] = nullptr;
  json["base_model_name_or_path"] = base_model.empty() ? Json(nullptr) : Json(base_model);
  json["bias"] = "none";
  json["exclude_modules"] = names_json(config.exclude);
  json["fan_in_fan_out"] = fan_in_fan_out;
  json["inference_mode"] = true;
  json["init_lora_weights"] = config.gaussian ? Json("gaussian") : Json(true);
  json["layer_replication"] = nullptr;
  json["layers_pattern"] = or_null(config.layers_pattern);
  json["layers_to_transform"] = or_null(config.layers);
  json["loftq_config"] = Json::object();
  json["lora_alpha"] =
      std::nearbyint(config.alpha) == config.alpha ? Json(static_cast<std::int64_t>(config.alpha)) : Json(config.alpha);
  json["lora_dropout"] = config.dropout;
  json["megatron_config"] = nullptr;
  json["megatron_core"] = "megatron.core";
  json["modules_to_save"] = or_null(config.modules_to_save);
  json["peft_type"] = "LORA";
  json["r"] = config.rank;
  json["rank_pattern"] = map_json(config.rank_pattern);
  json["revision"] = nullptr;
  json["target_modules"] = names_json(config.targets);
  json["task_type"] = "CAUSAL_LM";
  json["use_dora"] = false;
  json["use_rslora"] = config.rslora;
  return json;
}

}  // namespace convoy
