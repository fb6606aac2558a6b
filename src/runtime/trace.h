// When each instruction and each communication ran, as a Chrome/Perfetto trace.
#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Lane { kCompute, kCommunication };

  // `rank` becomes the trace's process, the lanes its threads.
  explicit Trace(int rank) : rank_(rank) {}

  // May be called by several threads.
  void add(Lane lane, std::string_view name, std::string_view category, Clock::time_point begin, Clock::time_point end,
           std::uint64_t bytes = 0);
  // JSON of the Trace Event Format. Times count from the clock's origin, which the processes of a host share.
  void write(const std::filesystem::path& path) const;

 private:
  struct Event {
    Lane lane;
    std::string name, category;
    Clock::time_point begin, end;
    std::uint64_t bytes;
  };
  const int rank_;
  mutable std::mutex lock_;
  std::vector<Event> events_;
};

}  // namespace convoy
