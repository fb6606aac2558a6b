#include "monitor/gpu_statistics.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace convoy {

void GpuWindow::Sum::add(const std::optional<double>& value) {
  if (!value) return;
  max = count == 0 ? *value : std::max(max, *value);
  sum += *value;
  ++count;
}

std::optional<MeanAndMax> GpuWindow::Sum::result() const {
  if (count == 0) return std::nullopt;
  return MeanAndMax{sum / count, max};
}

void GpuWindow::add(const GpuSample& sample) {
  latest_ = sample;
  ++sums_.samples;
  sums_.utilization.add(sample.utilization);
  sums_.memory_utilization.add(sample.memory_utilization);
  sums_.memory_used.add(sample.memory_used);
  sums_.power.add(sample.power);
  sums_.sm_clock.add(sample.sm_clock);
  sums_.memory_clock.add(sample.memory_clock);
  sums_.temperature.add(sample.temperature);
  if (!sample.throttle_reasons) return;
  ++sums_.told_reasons;
  const std::vector<std::string> words = throttle_words(*sample.throttle_reasons);
  if (!words.empty()) ++sums_.throttled;
  for (const std::string& word : words) ++sums_.reasons[word];
}

GpuSummary GpuWindow::take() {
  if (sums_.samples == 0 && latest_) add(GpuSample(*latest_));
  GpuSummary summary;
  summary.samples = sums_.samples;
  summary.utilization = sums_.utilization.result();
  summary.memory_utilization = sums_.memory_utilization.result();
  summary.memory_used = sums_.memory_used.result();
  summary.power = sums_.power.result();
  summary.sm_clock = sums_.sm_clock.result();
  summary.memory_clock = sums_.memory_clock.result();
  summary.temperature = sums_.temperature.result();
  if (latest_) {
    summary.memory_total = latest_->memory_total;
    summary.power_limit = latest_->power_limit;
  }
  if (sums_.told_reasons > 0) {
    const auto share = [&](int count) { return static_cast<double>(count) / sums_.told_reasons; };
    summary.throttled = share(sums_.throttled);
    for (const auto& [word, count] : sums_.reasons) summary.throttle_shares[word] = share(count);
  }
  sums_ = {};
  return summary;
}

std::unique_ptr<GpuStatistics> GpuStatistics::start(const Options& options) {
  try {
    return std::make_unique<GpuStatistics>(options);
  } catch (const Error& failure) {
    log_warning("no GPU statistics: {}", failure.what());
    return nullptr;
  }
}

GpuStatistics::GpuStatistics(const Options& options)
    : card_(options.device, options.library), period_(options.period), thread_([this] { watch(); }) {}

GpuStatistics::~GpuStatistics() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void GpuStatistics::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    // The driver may take milliseconds; those who log do not wait for it.
    lock.unlock();
    const GpuSample sample = card_.sample();
    const bool lost = card_.lost();
    for (const std::string& failure : card_.take_failures()) log_warning("GPU statistics: {}", failure);
    lock.lock();
    if (lost) {
      window_ = {};  // its last figures are no longer true
      return;
    }
    window_.add(sample);
    wake_.wait_for(lock, period_, [this] { return stop_; });
  }
}

GpuSummary GpuStatistics::take() {
  const std::lock_guard lock(mutex_);
  return window_.take();
}

std::optional<GpuSample> GpuStatistics::latest() const {
  const std::lock_guard lock(mutex_);
  return window_.latest();
}

void add_to(LogRecord& record, const GpuSummary& summary) {
  const auto add = [&](const char* name, const std::optional<MeanAndMax>& value) {
    if (!value) return;
    record.emplace_back(name, value->mean);
    record.emplace_back(std::string(name) + "_max", value->max);
  };
  add("gpu_utilization", summary.utilization);
  add("gpu_memory_utilization", summary.memory_utilization);
  add("gpu_memory_used_bytes", summary.memory_used);
  if (summary.memory_total) record.emplace_back("gpu_memory_total_bytes", *summary.memory_total);
  add("gpu_power_watts", summary.power);
  if (summary.power_limit) record.emplace_back("gpu_power_limit_watts", *summary.power_limit);
  add("gpu_sm_clock_mhz", summary.sm_clock);
  add("gpu_memory_clock_mhz", summary.memory_clock);
  add("gpu_temperature_celsius", summary.temperature);
  if (summary.throttled) record.emplace_back("gpu_throttled", *summary.throttled);
  std::string reasons;
  for (const auto& [word, share] : summary.throttle_shares)
    reasons += fmt::format("{}{} {:.0f}%", reasons.empty() ? "" : ", ", word, 100 * share);
  if (!reasons.empty()) record.emplace_back("gpu_throttle", reasons);
}

std::string gpu_text(const GpuSample& sample) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "gpu " : "  ") + part; };
  if (sample.utilization) add(fmt::format("{:.0f}%", 100 * *sample.utilization));
  if (sample.power) add(fmt::format("{:.0f} W", *sample.power));
  if (sample.temperature) add(fmt::format("{:.0f}C", *sample.temperature));
  if (sample.throttle_reasons) {
    for (const std::string& word : throttle_words(*sample.throttle_reasons)) add(word);
  }
  return text;
}

}  // namespace convoy
