#include "runtime/trace.h"

#include <fmt/format.h>

#include "base/files.h"

namespace convoy {
namespace {

double microseconds(Trace::Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

}  // namespace

void Trace::add(Lane lane, std::string_view name, std::string_view category, Clock::time_point begin,
                Clock::time_point end, std::uint64_t bytes) {
  const std::lock_guard guard(lock_);
  events_.push_back({lane, std::string(name), std::string(category), begin, end, bytes});
}

void Trace::write(const std::filesystem::path& path) const {
  const std::lock_guard guard(lock_);
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  text +=
      fmt::format(R"({{"name": "process_name", "ph": "M", "pid": {}, "args": {{"name": "rank {}"}}}})", rank_, rank_);
  for (const auto& [lane, name] : {std::pair{0, "compute"}, std::pair{1, "communication"}}) {
    text += fmt::format(
        ",\n"
        R"({{"name": "thread_name", "ph": "M", "pid": {}, "tid": {}, "args": {{"name": "{}"}}}})",
        rank_, lane, name);
  }
  for (const Event& event : events_) {
    text += fmt::format(
        ",\n"
        R"({{"name": "{}", "cat": "{}", "ph": "X", "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "args": {{"bytes": {}}}}})",
        event.name, event.category, rank_, event.lane == Lane::kCompute ? 0 : 1,
        microseconds(event.begin.time_since_epoch()), microseconds(event.end - event.begin), event.bytes);
  }
  write_file_atomic(path, text + "\n]}\n");
}

}  // namespace convoy
