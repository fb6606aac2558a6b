// How a card did while the run trained: a thread looks at it once a second; a log takes the mean and the maximum since
// the log before.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "monitor/log_record.h"
#include "monitor/nvml.h"

namespace convoy {

struct MeanAndMax {
  double mean = 0, max = 0;
};

// The looks since the last one was taken. What none of them had is absent; units as in GpuSample.
struct GpuSummary {
  int samples = 0;  // 0: no look yet, all is absent
  std::optional<MeanAndMax> utilization, memory_utilization, memory_used, power, sm_clock, memory_clock, temperature;
  std::optional<double> memory_total, power_limit;  // of the last look
  // Of the looks that could tell: the share with any reason, and the share of each.
  std::optional<double> throttled;
  std::map<std::string, double> throttle_shares;
};

// Sums looks up.
class GpuWindow {
 public:
  void add(const GpuSample& sample);
  // Begins anew. Without a look since the last call it gives the last look again, which is younger than a period.
  GpuSummary take();
  const std::optional<GpuSample>& latest() const { return latest_; }

 private:
  struct Sum {
    double sum = 0, max = 0;
    int count = 0;
    void add(const std::optional<double>& value);
    std::optional<MeanAndMax> result() const;
  };
  struct Sums {
    int samples = 0, told_reasons = 0, throttled = 0;
    Sum utilization, memory_utilization, memory_used, power, sm_clock, memory_clock, temperature;
    std::map<std::string, int> reasons;
  };
  Sums sums_;
  std::optional<GpuSample> latest_;
};

class GpuStatistics {
 public:
  struct Options {
    std::string device;  // see GpuCard
    std::string library = kNvmlLibrary;
    std::chrono::milliseconds period{1000};
  };
  // Null where the card cannot be watched, after one warning that says why.
  static std::unique_ptr<GpuStatistics> start(const Options& options);

  // Throws as GpuCard does.
  explicit GpuStatistics(const Options& options);
  ~GpuStatistics();
  GpuStatistics(const GpuStatistics&) = delete;
  GpuStatistics& operator=(const GpuStatistics&) = delete;

  // From any thread.
  GpuSummary take();
  std::optional<GpuSample> latest() const;
  const std::string& card() const { return card_.name(); }

 private:
  void watch();
  GpuCard card_;  // the thread's
  const std::chrono::milliseconds period_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // under the mutex, as the window
  GpuWindow window_;
  std::thread thread_;
};

// Adds what the summary has: the mean of `gpu_utilization` (a share), `gpu_memory_utilization`,
// `gpu_memory_used_bytes`, `gpu_power_watts`, `gpu_sm_clock_mhz`, `gpu_memory_clock_mhz`, `gpu_temperature_celsius`,
// and the maximum under the same name with `_max`; `gpu_memory_total_bytes`, `gpu_power_limit_watts`; `gpu_throttled`
// (the share of the time) and, where it is not 0, `gpu_throttle` ("power cap 40%, thermal 3%").
void add_to(LogRecord& record, const GpuSummary& summary);
// For the progress line: "gpu 98%  690 W  64C  power cap"; "" if nothing is known.
std::string gpu_text(const GpuSample& sample);

}  // namespace convoy
