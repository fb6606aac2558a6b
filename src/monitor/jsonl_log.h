// The run's log as JSON lines: one object per log, appended and flushed at once.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "monitor/log_record.h"

namespace convoy {

// Each process adds a line of its own first: {"event": "started"}, or {"event": "resumed", "step": N, "cut": k}. On
// resuming after step N, the entries since the last start with a later step are cut from the file, and so is a last
// line that a crash left incomplete; k says how many. Earlier runs in the file stay. Storage errors name the file.
class JsonlLog {
 public:
  explicit JsonlLog(std::filesystem::path path, std::optional<std::int64_t> resumed_step = std::nullopt);
  void write(const LogRecord& record);
  std::int64_t cut_entries() const { return cut_; }

 private:
  void write_line(const std::string& line);
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, &std::fclose};
  std::int64_t cut_ = 0;
};

}  // namespace convoy
