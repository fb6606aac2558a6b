#include "monitor/jsonl_log.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace convoy {
namespace {

struct Kept {
  std::string text;
  std::int64_t cut = 0;
};

// Whole lines of the earlier runs, and those of the last run up to `step`. Lines that are no JSON (someone's edit)
// stay, but not an incomplete one at the end.
Kept keep_until(const std::string& text, std::int64_t step) {
  std::vector<std::string> lines;
  std::vector<bool> late;
  Kept kept;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) {
      ++kept.cut;
      break;
    }
    lines.push_back(text.substr(at, end - at + 1));
    const Json entry = Json::parse(lines.back(), nullptr, false);
    const bool is_start = entry.is_object() && entry.contains("event") && entry["event"] == "started";
    if (is_start) late.assign(late.size(), false);
    late.push_back(entry.is_object() && entry.contains("step") && entry["step"].is_number() &&
                   entry["step"].get<double>() > static_cast<double>(step));
    at = end + 1;
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (late[i]) {
      ++kept.cut;
    } else {
      kept.text += lines[i];
    }
  }
  return kept;
}

bool ends_inside_line(const std::string& text) {
  return !text.empty() && text.back() != '\n';
}

}  // namespace

JsonlLog::JsonlLog(std::filesystem::path path, std::optional<std::int64_t> resumed_step) : path_(std::move(path)) {
  std::error_code failure;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), failure);
  if (failure) throw storage_error("cannot make the log's folder: " + failure.message()).at(path_.string());
  std::string earlier;
  if (std::filesystem::is_regular_file(path_, failure)) earlier = read_file(path_);
  if (resumed_step && !earlier.empty()) {
    const Kept kept = keep_until(earlier, *resumed_step);
    cut_ = kept.cut;
    if (kept.text != earlier) write_file_atomic(path_, kept.text);
    earlier = kept.text;
  }
  file_.reset(std::fopen(path_.c_str(), "ab"));
  if (file_ == nullptr)
    throw storage_error(fmt::format("cannot open the log: {}", std::strerror(errno))).at(path_.string());
  if (ends_inside_line(earlier)) write_line("\n");
  LogRecord first = {{"event", std::string(resumed_step ? "resumed" : "started")}};
  if (resumed_step) {
    first.emplace_back("step", *resumed_step);
    first.emplace_back("cut", cut_);
  }
  write(first);
}

void JsonlLog::write_line(const std::string& line) {
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0)
    throw storage_error(fmt::format("cannot write the log: {}", std::strerror(errno))).at(path_.string());
}

void JsonlLog::write(const LogRecord& record) {
  write_line(record_text(record, NotFinite::kStrict) + "\n");
}

}  // namespace convoy
