#include "config/value.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "config/config_node.h"

namespace convoy {

std::optional<double> parse_real(std::string_view text) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  if (text.empty() || text.find_first_not_of("0123456789+-.eE") != std::string_view::npos) return std::nullopt;
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  std::int64_t whole = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (status == std::errc() && end == text.data() + text.size() && !text.empty()) return whole;
  const std::optional<double> real = parse_real(text);
  constexpr double kExact = 9007199254740992.0;  // beyond 2^53 a double no longer tells whole numbers apart
  if (!real || std::abs(*real) > kExact || *real != std::floor(*real)) return std::nullopt;
  return static_cast<std::int64_t>(*real);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::optional<bool> parse_bool(std::string_view text) {
  const std::string word = lower(text);
  if (word == "true" || word == "yes" || word == "on" || word == "1") return true;
  if (word == "false" || word == "no" || word == "off" || word == "0") return false;
  return std::nullopt;
}

namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 9> kUnits = {{{"tib", 0x1p40},
                                         {"gib", 0x1p30},
                                         {"mib", 0x1p20},
                                         {"kib", 0x1p10},
                                         {"tb", 1e12},
                                         {"gb", 1e9},
                                         {"mb", 1e6},
                                         {"kb", 1e3},
                                         {"b", 1}}};

}  // namespace

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  const std::string word = lower(text);
  std::string_view number = word;
  double factor = 1;
  for (const Unit& unit : kUnits) {
    if (number.size() > unit.name.size() && number.substr(number.size() - unit.name.size()) == unit.name) {
      number.remove_suffix(unit.name.size());
      while (!number.empty() && number.back() == ' ') number.remove_suffix(1);
      factor = unit.bytes;
      break;
    }
  }
  if (factor == 1) return parse_integer(number);
  const std::optional<double> real = parse_real(number);
  if (!real || std::abs(*real * factor) > 9e18) return std::nullopt;
  return static_cast<std::int64_t>(std::floor(*real * factor));
}

bool is_null_word(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

std::string bytes_text(std::int64_t bytes) {
  static constexpr std::array<std::pair<std::string_view, std::int64_t>, 4> kBinary = {
      {{"TiB", 1LL << 40}, {"GiB", 1LL << 30}, {"MiB", 1LL << 20}, {"KiB", 1LL << 10}}};
  for (const auto& [name, unit] : kBinary) {
    if (bytes != 0 && bytes % unit == 0) return fmt::format("{}{}", bytes / unit, name);
  }
  return std::to_string(bytes);
}

namespace {

// Text that YAML reads back as this text without quotes.
bool is_plain(const std::string& text) {
  if (is_null_word(text) || parse_bool(text) || parse_real(text)) return false;
  const auto word_char = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '/' ||
           c == '.' || c == '-' || c == '+';
  };
  for (const char c : text) {
    if (!word_char(c)) return false;
  }
  return text.front() != '-' && text.front() != '+' && text.front() != '.';
}

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string yaml_text(const Json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return is_plain(text) ? text : quoted(text);
  }
  if (value.is_array()) {
    std::string out = "[";
    for (const Json& item : value) out += (out.size() > 1 ? ", " : "") + yaml_text(item);
    return out + "]";
  }
  if (value.is_object()) {
    std::string out = "{";
    for (const auto& [key, item] : value.items())
      out += (out.size() > 1 ? ", " : "") + quoted(key) + ": " + yaml_text(item);
    return out + "}";
  }
  return value.dump();
}

}  // namespace convoy
