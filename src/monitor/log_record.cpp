#include "monitor/log_record.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace convoy {
namespace {

// Stands for a number that is not finite inside a tree; the control character keeps it apart from text.
constexpr char kMark = '\x01';
constexpr std::array<std::string_view, 3> kWords = {"NaN", "Infinity", "-Infinity"};

std::string_view word_of(double value) {
  if (std::isnan(value)) return kWords[0];
  return value > 0 ? kWords[1] : kWords[2];
}

std::optional<double> number_of_word(std::string_view word) {
  if (word == kWords[0]) return std::numeric_limits<double>::quiet_NaN();
  if (word == kWords[1]) return std::numeric_limits<double>::infinity();
  if (word == kWords[2]) return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

std::string escaped_mark(std::string_view word) {
  return fmt::format("\"\\u0001{}\"", word);
}

// Puts Python's words, where they stand outside of strings, into marked strings that JSON allows.
std::string mark_words(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      out.append(text.substr(i, 2));
      i += 2;
      continue;
    }
    bool replaced = false;
    for (const std::string_view word : kWords) {
      if (in_string || text.substr(i, word.size()) != word) continue;
      out += escaped_mark(word);
      i += word.size();
      replaced = true;
      break;
    }
    if (!replaced) out += text[i++];
  }
  return out;
}

std::string unmark_words(std::string text) {
  for (const std::string_view word : kWords) {
    const std::string marked = escaped_mark(word);
    for (std::size_t at = text.find(marked); at != std::string::npos; at = text.find(marked, at + word.size()))
      text.replace(at, marked.size(), word);
  }
  return text;
}

Json json_of_value(const LogValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return *whole;
  if (const auto* real = std::get_if<double>(&value)) return python_number(*real);
  if (const auto* truth = std::get_if<bool>(&value)) return *truth;
  return std::get<std::string>(value);
}

constexpr auto kReplace = Json::error_handler_t::replace;

}  // namespace

Json python_number(double value) {
  if (std::isfinite(value)) return value;
  return kMark + std::string(word_of(value));
}

std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text.empty() || text.front() != kMark) return std::nullopt;
  return number_of_word(std::string_view(text).substr(1));
}

Json parse_python_json(std::string_view text, const std::string& name) {
  return parse_json(mark_words(text), name);
}

std::string dump_python_json(const Json& value) {
  return unmark_words(value.dump(2, ' ', true, kReplace)) + "\n";
}

std::optional<double> number_in(const LogRecord& record, const std::string& name) {
  for (const auto& [key, value] : record) {
    if (key != name) continue;
    if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
    if (const auto* real = std::get_if<double>(&value)) return *real;
  }
  return std::nullopt;
}

Json json_of(const LogRecord& record) {
  Json object = Json::object();
  for (const auto& [key, value] : record) object[key] = json_of_value(value);
  return object;
}

std::string record_text(const LogRecord& record, NotFinite how) {
  if (how == NotFinite::kPython) return unmark_words(json_of(record).dump(-1, ' ', true, kReplace));
  Json object = Json::object();
  for (const auto& [key, value] : record) {
    const auto* real = std::get_if<double>(&value);
    object[key] = real != nullptr && !std::isfinite(*real) ? Json(std::string(word_of(*real))) : json_of_value(value);
  }
  return object.dump(-1, ' ', false, kReplace);
}

std::string python_dict(const LogRecord& record) {
  std::string out = "{";
  for (const auto& [key, value] : record) {
    if (out.size() > 1) out += ", ";
    out += "'" + key + "': ";
    if (const auto* whole = std::get_if<std::int64_t>(&value)) {
      out += std::to_string(*whole);
    } else if (const auto* real = std::get_if<double>(&value)) {
      out += std::isfinite(*real) ? Json(*real).dump() : std::isnan(*real) ? "nan" : *real > 0 ? "inf" : "-inf";
    } else if (const auto* truth = std::get_if<bool>(&value)) {
      out += *truth ? "True" : "False";
    } else {
      out += "'" + std::get<std::string>(value) + "'";
    }
  }
  return out + "}";
}

LogRecord record_of(const Json& object) {
  if (!object.is_object()) throw data_error("a log entry must be a JSON object");
  LogRecord record;
  for (const auto& [key, value] : object.items()) {
    if (value.is_boolean()) {
      record.emplace_back(key, value.get<bool>());
    } else if (value.is_number_integer() && !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX)) {
      record.emplace_back(key, value.get<std::int64_t>());
    } else if (const auto number = number_of(value)) {
      record.emplace_back(key, *number);
    } else if (value.is_string()) {
      record.emplace_back(key, value.get<std::string>());
    } else {
      record.emplace_back(key, value.dump(-1, ' ', false, kReplace));
    }
  }
  return record;
}

}  // namespace convoy
