#include "data/report.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "data/input.h"

namespace convoy {
namespace {

constexpr std::array<std::pair<const char*, std::int64_t DataReport::*>, 13> kCounts{{
    {"files", &DataReport::files},
    {"bytes", &DataReport::bytes},
    {"documents", &DataReport::documents},
    {"samples", &DataReport::samples},
    {"tokens", &DataReport::tokens},
    {"targets", &DataReport::targets},
    {"truncated", &DataReport::truncated},
    {"truncated_tokens", &DataReport::truncated_tokens},
    {"split", &DataReport::split},
    {"pieces_without_targets", &DataReport::pieces_without_targets},
    {"rows", &DataReport::rows},
    {"row_tokens", &DataReport::row_tokens},
    {"dropped_rows", &DataReport::dropped_rows},
}};

// Names of files may hold any bytes, but the report is kept as JSON.
std::string printable(std::string text) {
  for (std::size_t bad = find_invalid_utf8(text); bad != std::string::npos; bad = find_invalid_utf8(text))
    text[bad] = '?';
  return text;
}

}  // namespace

void DataReport::skip(const std::string& kind, const std::string& where, const std::string& reason) {
  ++skipped[kind];
  if (examples.size() < kMaxExamples) examples.push_back({printable(where), printable(reason)});
}

void DataReport::merge(const DataReport& other) {
  for (const auto& [name, field] : kCounts) this->*field += other.*field;
  for (const auto& [kind, count] : other.skipped) skipped[kind] += count;
  for (const Skipped& example : other.examples) {
    if (examples.size() < kMaxExamples) examples.push_back(example);
  }
}

std::int64_t DataReport::total_skipped() const {
  std::int64_t total = 0;
  for (const auto& [kind, count] : skipped) total += count;
  return total;
}

std::string DataReport::text() const {
  std::string line =
      fmt::format("{} documents from {} file{} ({:.1f} MB): {} samples, {} tokens, {} targets", documents, files,
                  files == 1 ? "" : "s", static_cast<double>(bytes) / 1e6, samples, tokens, targets);
  if (!skipped.empty()) {
    line += fmt::format("; left out {}:", total_skipped());
    const char* separator = " ";
    for (const auto& [kind, count] : skipped) {
      line += fmt::format("{}{} {}", separator, count, kind);
      separator = ", ";
    }
  }
  if (rows > 0) {
    line += fmt::format("; {} rows, {:.1f}% filled", rows, 100.0 * fill_ratio);
    if (split > 0) line += fmt::format(", {} samples split", split);
    if (pieces_without_targets > 0)
      line += fmt::format(" ({} pieces without targets left out)", pieces_without_targets);
    if (dropped_rows > 0) line += fmt::format(", {} rows of the last step dropped", dropped_rows);
    if (truncated > 0) line += fmt::format(", {} samples truncated (by {} tokens)", truncated, truncated_tokens);
  }
  line += ".";
  for (const Skipped& example : examples) line += fmt::format("\n  left out {}: {}", example.where, example.reason);
  const auto shown = static_cast<std::int64_t>(examples.size());
  if (total_skipped() > shown) line += fmt::format("\n  … and {} more", total_skipped() - shown);
  return line;
}

Json DataReport::to_json() const {
  Json json = Json::object();
  for (const auto& [name, field] : kCounts) json[name] = this->*field;
  json["fill_ratio"] = fill_ratio;
  json["skipped"] = Json::object();
  for (const auto& [kind, count] : skipped) json["skipped"][kind] = count;
  json["examples"] = Json::array();
  for (const Skipped& example : examples)
    json["examples"].push_back({{"where", example.where}, {"reason", example.reason}});
  return json;
}

DataReport DataReport::from_json(const Json& json) {
  DataReport report;
  try {
    for (const auto& [name, field] : kCounts) report.*field = json.at(name).get<std::int64_t>();
    report.fill_ratio = json.at("fill_ratio").get<double>();
    for (const auto& [kind, count] : json.at("skipped").items()) report.skipped[kind] = count.get<std::int64_t>();
    for (const Json& example : json.at("examples"))
      report.examples.push_back({example.at("where").get<std::string>(), example.at("reason").get<std::string>()});
  } catch (const nlohmann::json::exception& failure) {
    throw data_error(fmt::format("not a data report: {}", failure.what()));
  }
  return report;
}

}  // namespace convoy
