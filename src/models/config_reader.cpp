#include "models/config_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace convoy {
namespace {

Error wrong_type(const std::string& where, const std::string& key, std::string_view expected, const Json& found) {
  return usage_error(fmt::format("'{}' should be {}, not {}", key, expected, found.dump())).at(where);
}

}  // namespace

bool ConfigReader::has(const std::string& key) const {
  const auto place = config_.find(key);
  return place != config_.end() && !place->is_null();
}

const Json& ConfigReader::at(const std::string& key) const {
  if (!has(key)) throw usage_error(fmt::format("the configuration has no '{}'", key)).at(where_);
  return config_.at(key);
}

std::int64_t ConfigReader::integer(const std::string& key) const {
  const Json& value = at(key);
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float() && std::nearbyint(value.get<double>()) == value.get<double>() &&
      std::abs(value.get<double>()) < 9e15) {
    return static_cast<std::int64_t>(value.get<double>());
  }
  throw wrong_type(where_, key, "an integer", value);
}

std::int64_t ConfigReader::integer(const std::string& key, std::int64_t fallback) const {
  return has(key) ? integer(key) : fallback;
}

double ConfigReader::number(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_number()) throw wrong_type(where_, key, "a number", value);
  return value.get<double>();
}

double ConfigReader::number(const std::string& key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

bool ConfigReader::boolean(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  const Json& value = at(key);
  if (!value.is_boolean()) throw wrong_type(where_, key, "true or false", value);
  return value.get<bool>();
}

std::string ConfigReader::text(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_string()) throw wrong_type(where_, key, "a string", value);
  return value.get<std::string>();
}

std::string ConfigReader::text(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

std::vector<double> ConfigReader::numbers(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_array()) throw wrong_type(where_, key, "a list of numbers", value);
  std::vector<double> all;
  for (const Json& each : value) {
    if (!each.is_number()) throw wrong_type(where_, key, "a list of numbers", value);
    all.push_back(each.get<double>());
  }
  return all;
}

std::vector<std::string> ConfigReader::texts(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_array()) throw wrong_type(where_, key, "a list of strings", value);
  std::vector<std::string> all;
  for (const Json& each : value) {
    if (!each.is_string()) throw wrong_type(where_, key, "a list of strings", value);
    all.push_back(each.get<std::string>());
  }
  return all;
}

std::optional<ConfigReader> ConfigReader::object(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  const Json& value = at(key);
  if (!value.is_object()) throw wrong_type(where_, key, "an object", value);
  return ConfigReader(value, where_ + ", " + key);
}

std::int64_t ConfigReader::positive(const std::string& key) const {
  const std::int64_t value = integer(key);
  if (value < 1) throw usage_error(fmt::format("'{}' should be at least 1, not {}", key, value)).at(where_);
  return value;
}

std::int64_t ConfigReader::positive(const std::string& key, std::int64_t fallback) const {
  return has(key) ? positive(key) : fallback;
}

void ConfigReader::only(const std::string& key, const Json& supported, const std::string& remedy) const {
  if (!has(key) || at(key) == supported) return;
  throw usage_error(fmt::format("'{}' is {}; only {} is supported", key, at(key).dump(), supported.dump()))
      .at(where_)
      .mend(remedy);
}

}  // namespace convoy
