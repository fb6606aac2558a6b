#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace convoy {
namespace {

spdlog::level::level_enum native(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kQuiet:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = std::make_shared<spdlog::logger>("convoy", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%H:%M:%S %^%l%$ %v");
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  logger().set_level(native(level));
}
void log_message(LogLevel level, std::string_view message) {
  logger().log(native(level), message);
}

}  // namespace convoy
