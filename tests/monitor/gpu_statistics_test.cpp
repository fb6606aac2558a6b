#include "monitor/gpu_statistics.h"

#include "fake_nvml_support.h"
#include "monitor_support.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

GpuSample sample(double utilization, double power, std::uint64_t reasons) {
  GpuSample result;
  result.utilization = utilization;
  result.power = power;
  result.throttle_reasons = reasons;
  result.memory_total = 1000;
  return result;
}

std::vector<std::string> names(const LogRecord& record) {
  std::vector<std::string> result;
  for (const auto& [name, value] : record) result.push_back(name);
  return result;
}

TEST(GpuWindow, MeanAndMaxSinceTheLastRead) {
  GpuWindow window;
  EXPECT_EQ(window.take().samples, 0);
  EXPECT_EQ(window.latest(), std::nullopt);
  window.add(sample(0.5, 300, 0));
  window.add(sample(1.0, 700, 0x4 | 0x40));
  window.add(sample(0.9, 500, 0x4));
  window.add(sample(0.8, 500, 0));
  const GpuSummary first = window.take();
  EXPECT_EQ(first.samples, 4);
  EXPECT_DOUBLE_EQ(first.utilization->mean, 0.8);
  EXPECT_DOUBLE_EQ(first.utilization->max, 1.0);
  EXPECT_DOUBLE_EQ(first.power->mean, 500);
  EXPECT_DOUBLE_EQ(first.power->max, 700);
  EXPECT_EQ(first.memory_total, 1000.0);
  EXPECT_FALSE(first.temperature.has_value());
  EXPECT_EQ(first.throttled, 0.5);
  EXPECT_EQ(first.throttle_shares, (std::map<std::string, double>{{"power cap", 0.5}, {"thermal", 0.25}}));
  window.add(sample(0.2, 100, 0));
  const GpuSummary second = window.take();
  EXPECT_EQ(second.samples, 1);
  EXPECT_DOUBLE_EQ(second.power->max, 100);
  EXPECT_EQ(second.throttled, 0.0);
  const GpuSummary again = window.take();  // reads that follow each other quickly
  EXPECT_DOUBLE_EQ(again.power->mean, 100);
}

TEST(GpuWindow, MeansAreOfTheLooksThatHadTheFigure) {
  GpuWindow window;
  window.add(sample(0.5, 300, 0x4));
  window.add(GpuSample{});
  const GpuSummary summary = window.take();
  EXPECT_DOUBLE_EQ(summary.power->mean, 300);
  EXPECT_EQ(summary.throttled, 1.0);
  window.add(GpuSample{});
  EXPECT_FALSE(window.take().power.has_value());
}

TEST(GpuStatistics, RecordsAndProgressLine) {
  LogRecord nothing = {{"loss", 1.0}};
  add_to(nothing, GpuSummary{});
  EXPECT_EQ(names(nothing), std::vector<std::string>{"loss"});
  EXPECT_EQ(gpu_text(GpuSample{}), "");

  GpuWindow window;
  GpuSample full = sample(0.98, 689.6, 0x4 | 0x20);
  full.memory_utilization = 0.4;
  full.memory_used = 900;
  full.power_limit = 700;
  full.sm_clock = 1980;
  full.memory_clock = 3201;
  full.temperature = 64;
  window.add(full);
  full.throttle_reasons = 0x4;
  full.temperature = 66;
  window.add(full);
  LogRecord record;
  add_to(record, window.take());
  EXPECT_EQ(names(record),
            (std::vector<std::string>{
                "gpu_utilization", "gpu_utilization_max", "gpu_memory_utilization", "gpu_memory_utilization_max",
                "gpu_memory_used_bytes", "gpu_memory_used_bytes_max", "gpu_memory_total_bytes", "gpu_power_watts",
                "gpu_power_watts_max", "gpu_power_limit_watts", "gpu_sm_clock_mhz", "gpu_sm_clock_mhz_max",
                "gpu_memory_clock_mhz", "gpu_memory_clock_mhz_max", "gpu_temperature_celsius",
                "gpu_temperature_celsius_max", "gpu_throttled", "gpu_throttle"}));
  EXPECT_EQ(number_in(record, "gpu_temperature_celsius"), 65.0);
  EXPECT_EQ(number_in(record, "gpu_temperature_celsius_max"), 66.0);
  EXPECT_EQ(number_in(record, "gpu_throttled"), 1.0);
  EXPECT_EQ(record.back().second, LogValue(std::string("power cap 100%, thermal 50%")));
  EXPECT_EQ(gpu_text(full), "gpu 98%  690 W  66C  power cap");
}

TEST(GpuStatistics, WatchesInTheBackground) {
  FakeLibrary fake(CONVOY_FAKE_NVML);
  {
    GpuStatistics statistics({kFakeBusId, fake.path(), milliseconds(1)});
    EXPECT_EQ(statistics.card(), "Fake card");
    while (!statistics.latest()) std::this_thread::yield();
    const int before = fake->questions;
    while (fake->questions < before + 40) std::this_thread::yield();
    fake(FakeField::kPower) = 500000;
    while (statistics.latest()->power != 500.0) std::this_thread::yield();
    const GpuSummary summary = statistics.take();
    EXPECT_GE(summary.samples, 5);
    EXPECT_DOUBLE_EQ(summary.power->max, 500);
    EXPECT_LT(summary.power->mean, 500);
    EXPECT_GT(summary.power->mean, 412.4);
  }
  EXPECT_EQ(fake->inits, 1);
  EXPECT_EQ(fake->shutdowns, 1);
}

TEST(GpuStatistics, EndsWithoutWaitingForThePeriod) {
  FakeLibrary fake(CONVOY_FAKE_NVML);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) GpuStatistics(GpuStatistics::Options{"0", fake.path(), std::chrono::hours(1)});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
  EXPECT_EQ(fake->shutdowns, 20);
}

TEST(GpuStatistics, ALostCardReportsNothingMore) {
  FakeLibrary fake(CONVOY_FAKE_NVML);
  GpuStatistics statistics({kFakeBusId, fake.path(), milliseconds(1)});
  while (!statistics.latest()) std::this_thread::yield();
  testing::internal::CaptureStderr();
  fake->code(FakeField::kUtilization) = 15;
  while (statistics.latest()) std::this_thread::yield();
  EXPECT_EQ(statistics.take().samples, 0);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("GPU statistics: utilization: Some Failure (error 15)"), std::string::npos) << told;
}

TEST(GpuStatistics, WithoutNvmlItSaysSoOnceAndIsAbsent) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(GpuStatistics::start({"0", "/no/such/libnvidia-ml.so", milliseconds(1)}), nullptr);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("no GPU statistics: cannot open NVML"), std::string::npos) << told;
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1);
  FakeLibrary fake(CONVOY_FAKE_NVML);
  EXPECT_NE(GpuStatistics::start({"0", fake.path(), milliseconds(1)}), nullptr);
}

}  // namespace
}  // namespace convoy
