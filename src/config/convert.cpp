#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/suggest.h"
#include "config/given.h"
#include "config/value.h"

namespace convoy {
namespace {

std::string number_text(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{}", value);
}

std::string range_text(const Key& key) {
  std::string text;
  if (std::isfinite(key.min))
    text += fmt::format(" {} {}", key.above_min ? "above" : "of at least", number_text(key.min));
  if (std::isfinite(key.max) && key.max < 1e15)
    text +=
        fmt::format("{} {} {}", text.empty() ? "" : " and", key.below_max ? "below" : "at most", number_text(key.max));
  return text;
}

std::vector<std::string> main_words(const Key& key) {
  std::vector<std::string> words;
  for (const Key::Word& word : key.words) {
    if (static_cast<std::size_t>(word.index) == words.size()) words.push_back(word.text);
  }
  return words;
}

std::string shown(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      return "null";
    case ConfigNode::Kind::kList:
      return "a list";
    case ConfigNode::Kind::kMap:
      return "a map";
    case ConfigNode::Kind::kScalar:
      break;
  }
  constexpr std::size_t kLongest = 60;
  if (node.text.size() <= kLongest) return "'" + node.text + "'";
  std::size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(node.text[end]) & 0xc0u) == 0x80u) --end;
  return "'" + node.text.substr(0, end) + "…'";
}

class Converter {
 public:
  explicit Converter(const Given& given) : given_(given), key_(*given.key), node_(given.node) {}

  SettingValue convert() const {
    if (node_.kind == ConfigNode::Kind::kNull) {
      if (key_.nullable || key_.kind == Key::Kind::kAny) return {};
      if (key_.kind == Key::Kind::kMap) return std::string("{}");
      throw wrong();
    }
    switch (key_.kind) {
      case Key::Kind::kBool:
        return boolean();
      case Key::Kind::kInteger:
        return integer(parse_integer(text()));
      case Key::Kind::kBytes:
        return integer(parse_bytes(text()));
      case Key::Kind::kReal:
        return real();
      case Key::Kind::kText:
        return text();
      case Key::Kind::kChoice:
        return choice();
      case Key::Kind::kList:
        return list();
      case Key::Kind::kMap:
        return map();
      case Key::Kind::kTextOrMap:
        return node_.kind == ConfigNode::Kind::kMap ? map() : SettingValue(path());
      case Key::Kind::kTextOrBool:
        return text_or_bool();
      case Key::Kind::kAny:
        return {};
    }
    throw wrong();
  }

 private:
  Error wrong(const std::string& hint = "") const {
    return usage_error(
               fmt::format("`{}` must be {}, not {}{}", given_.written, accepted_values(key_), shown(node_), hint))
        .at(given_.where);
  }

  const std::string& text() const {
    if (node_.kind != ConfigNode::Kind::kScalar) throw wrong();
    return node_.text;
  }

  std::string path() const {
    if (text().empty() || text().front() == '{') throw wrong();
    return text();
  }

  SettingValue boolean() const {
    const auto value = parse_bool(text());
    if (!value) throw wrong();
    return *value;
  }

  void check_range(double value) const {
    const bool low = value < key_.min || (key_.above_min && value == key_.min);
    const bool high = value > key_.max || (key_.below_max && value == key_.max);
    if (low || high) throw wrong();
  }

  SettingValue integer(std::optional<std::int64_t> value) const {
    if (!value) throw wrong();
    check_range(static_cast<double>(*value));
    return *value;
  }

  SettingValue real() const {
    const auto value = parse_real(text());
    if (!value) throw wrong();
    check_range(*value);
    return *value;
  }

  SettingValue choice() const {
    const std::string word = lower(text());
    for (const Key::Word& known : key_.words) {
      if (lower(known.text) == word) return known.index;
    }
    for (const Key::Refusal& refusal : key_.refusals) {
      if (lower(refusal.text) == word)
        throw usage_error(fmt::format("`{}`: '{}' is not supported", given_.written, text()))
            .at(given_.where)
            .mend(refusal.remedy);
    }
    const std::vector<std::string> words = main_words(key_);
    throw wrong(did_you_mean(word, words));
  }

  SettingValue list() const {
    std::vector<std::string> result;
    if (node_.kind == ConfigNode::Kind::kMap) throw wrong();
    if (node_.kind == ConfigNode::Kind::kScalar) return std::vector<std::string>{node_.text};
    for (const ConfigNode& item : node_.items) {
      if (item.kind != ConfigNode::Kind::kScalar)
        throw usage_error(fmt::format("`{}` must be a list of texts, and holds {}", given_.written, shown(item)))
            .at(given_.where);
      result.push_back(item.text);
    }
    return result;
  }

  SettingValue map() const {
    if (node_.kind != ConfigNode::Kind::kMap) throw wrong();
    return to_json(node_).dump();
  }

  // true and false are kept as words; a folder with such a name is written ./true.
  SettingValue text_or_bool() const {
    const auto truth = node_.quoted ? std::nullopt : parse_bool(text());
    if (truth) return *truth ? SettingValue(std::string("true")) : SettingValue();
    if (text().empty()) throw wrong();
    return text();
  }

  const Given& given_;
  const Key& key_;
  const ConfigNode& node_;
};

}  // namespace

SettingValue convert_value(const Given& given) {
  return Converter(given).convert();
}

std::string accepted_values(const Key& key) {
  switch (key.kind) {
    case Key::Kind::kBool:
      return "true or false";
    case Key::Kind::kInteger:
      return "a whole number" + range_text(key);
    case Key::Kind::kReal:
      return "a number" + range_text(key);
    case Key::Kind::kBytes:
      return "a number of bytes" + range_text(key) + ", such as 12GiB or 800MB";
    case Key::Kind::kText:
      return "a text";
    case Key::Kind::kList:
      return "a text or a list of texts";
    case Key::Kind::kMap:
      return "a map";
    case Key::Kind::kTextOrMap:
      return "a path or a map";
    case Key::Kind::kTextOrBool:
      return "a path, true or false";
    case Key::Kind::kAny:
      return "any value";
    case Key::Kind::kChoice:
      break;
  }
  std::string text = "one of ";
  for (const std::string& word : main_words(key)) text += (text.size() > 7 ? ", " : "") + word;
  return text;
}

std::string value_text(const Key& key, const SettingValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return "null";
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&value)) {
    if (key.kind == Key::Kind::kBytes) return bytes_text(*whole);
    if (key.kind == Key::Kind::kChoice) return yaml_text(main_words(key).at(static_cast<std::size_t>(*whole)));
    return std::to_string(*whole);
  }
  if (const auto* real = std::get_if<double>(&value)) return number_text(*real);
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) return yaml_text(Json(*list));
  const auto& text = std::get<std::string>(value);
  const bool is_map = key.kind == Key::Kind::kMap || (key.kind == Key::Kind::kTextOrMap && text.rfind('{', 0) == 0);
  if (is_map) return yaml_text(Json::parse(text));
  if (key.kind == Key::Kind::kTextOrBool && text == "true") return text;
  return yaml_text(text);
}

bool is_off(const ConfigNode& node) {
  if (node.kind == ConfigNode::Kind::kNull) return true;
  if (node.kind == ConfigNode::Kind::kList) {
    for (const ConfigNode& item : node.items) {
      if (!is_off(item)) return false;
    }
    return true;
  }
  if (node.kind == ConfigNode::Kind::kMap) return node.entries.empty();
  const std::string word = lower(node.text);
  return word.empty() || word == "none" || parse_bool(word) == false || parse_real(word) == 0.0;
}

}  // namespace convoy
