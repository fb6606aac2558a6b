#include "text/component.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/unicode.h"

namespace convoy {
namespace {

constexpr int kDeepestSequence = 16;

void flatten(const Json& json, const std::string& kind, const std::string& parts_key, int depth,
             std::vector<Component>& out) {
  if (json.is_null()) return;
  Component component(json, kind);
  if (component.type() != "Sequence") {
    out.push_back(std::move(component));
    return;
  }
  if (depth == kDeepestSequence) component.wrong(fmt::format("nests deeper than {} levels", kDeepestSequence));
  const Json& parts = component.raw(parts_key);
  if (!parts.is_array()) component.wrong(fmt::format("needs a list '{}'", parts_key));
  component.finish();
  for (const Json& part : parts) flatten(part, kind, parts_key, depth + 1, out);
}

}  // namespace

Component::Component(const Json& json, const std::string& kind) : json_(json), kind_(kind) {
  if (!json.is_object()) throw data_error(fmt::format("{} must be an object or null", kind));
  const auto type = json.find("type");
  if (type == json.end() || !type->is_string()) throw data_error(fmt::format("{} has no 'type'", kind));
  type_ = type->get<std::string>();
  known_.insert("type");
}

const Json& Component::raw(const std::string& key) {
  static const Json null;
  known_.insert(key);
  const auto found = json_.find(key);
  return found == json_.end() ? null : *found;
}

bool Component::boolean(const std::string& key, bool fallback) {
  const Json& value = raw(key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) wrong(fmt::format("needs true or false for '{}'", key));
  return value.get<bool>();
}

std::string Component::text(const std::string& key, std::optional<std::string> fallback) {
  const Json& value = raw(key);
  if (value.is_null() && fallback) return *fallback;
  if (!value.is_string()) wrong(fmt::format("needs a string for '{}'", key));
  return value.get<std::string>();
}

std::int64_t Component::integer(const std::string& key, std::optional<std::int64_t> fallback) {
  const Json& value = raw(key);
  if (value.is_null() && fallback) return *fallback;
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX)) {
    wrong(fmt::format("needs an integer for '{}'", key));
  }
  return value.get<std::int64_t>();
}

char32_t Component::character(const std::string& key, std::optional<char32_t> fallback) {
  if (raw(key).is_null() && fallback) return *fallback;
  const std::string value = text(key);
  const CodePoint c = value.empty() ? CodePoint{0, 0, false} : decode_utf8(value, 0);
  if (!c.valid || c.length != value.size()) wrong(fmt::format("needs a single character for '{}'", key));
  return c.code;
}

Pattern Component::pattern(const std::string& key) {
  const Json& value = raw(key);
  if (value.is_object() && value.size() == 1 && value.begin()->is_string()) {
    const auto expression = value.begin()->get<std::string>();
    if (value.begin().key() == "String") return Pattern::literal(expression);
    if (value.begin().key() == "Regex") {
      try {
        return Pattern::expression(expression);
      } catch (Error& failure) {
        throw failure.at(name());
      }
    }
  }
  wrong(fmt::format("needs {{\"String\": …}} or {{\"Regex\": …}} for '{}'", key));
}

void Component::finish() const {
  for (const auto& [key, value] : json_.items()) {
    if (known_.count(key) == 0) wrong(fmt::format("has an option '{}' that is not supported", key));
  }
}

void Component::unsupported() const {
  throw data_error(fmt::format("{} is not supported", name()));
}

void Component::wrong(const std::string& what) const {
  throw data_error(fmt::format("{} {}", name(), what));
}

std::vector<Component> flatten_components(const Json& json, const std::string& kind, const std::string& parts_key) {
  std::vector<Component> out;
  flatten(json, kind, parts_key, 0, out);
  return out;
}

}  // namespace convoy
