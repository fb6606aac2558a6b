// The log: timestamps and levels on stderr. Progress lines and results go to stdout through monitor, not through here.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace convoy {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kQuiet };

void set_log_level(LogLevel level);
void log_message(LogLevel level, std::string_view message);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace convoy
