#include "train/run_observer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "monitor/fake_nvml_support.h"

namespace convoy {
namespace {

class Observer : public testing::Test {
 protected:
  Observer() : folder_(std::filesystem::path(testing::TempDir()) / ("convoy_observer_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    config_.output_dir = folder_.string();
    settings_.max_steps = 4;
    settings_.flops_per_step = 6e12;
    settings_.flops_per_token = 1e9;
    settings_.ranks = 2;
  }
  ~Observer() override { std::filesystem::remove_all(folder_); }

  // The second line of the log, after `steps` steps of half a second of which the last is logged.
  Json log_of(int steps) {
    settings_.log_every = steps;
    RunObserver observer(config_, settings_, std::nullopt);
    // A look asks eight questions; the ninth begins the second look, when the first is to be had.
    while (fake_ != nullptr && (*fake_)->questions < 9) std::this_thread::yield();
    for (int i = 1; i <= steps; ++i) {
      StepResult step;
      step.step = i;
      step.loss = 2;
      step.tokens = 100;
      step.seconds = 0.5;
      observer.on_step(step);
    }
    const std::string text = read_file(folder_ / "log.jsonl");
    const std::size_t second = text.find('\n') + 1;
    total_flos_ = Json::parse(observer.trainer_state(steps, 1))["total_flos"];
    return Json::parse(text.substr(second, text.find('\n', second) - second));
  }

  std::filesystem::path folder_;
  RunConfig config_;
  RunObserver::Settings settings_;
  FakeLibrary* fake_ = nullptr;
  double total_flos_ = 0;
};

TEST_F(Observer, WithoutAGpuOnlyTheArithmeticIsLogged) {
  const Json entry = log_of(2);
  EXPECT_DOUBLE_EQ(entry["flops_per_second"].get<double>(), 12e12);
  EXPECT_FALSE(entry.contains("share_of_ceiling"));
  for (const auto& [name, value] : entry.items()) EXPECT_NE(name.rfind("gpu_", 0), 0u) << name;
  EXPECT_DOUBLE_EQ(total_flos_, 200e9);
}

TEST_F(Observer, TheShareIsOfOneRanksCeiling) {
  settings_.ceiling = {"some card", 24e12};
  testing::internal::CaptureStdout();
  const Json entry = log_of(2);
  EXPECT_DOUBLE_EQ(entry["share_of_ceiling"].get<double>(), 0.25);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("  12 TFLOP/s (25% of the ceiling)"), std::string::npos);
}

TEST_F(Observer, TheCardsFiguresAreLogged) {
  FakeLibrary fake(CONVOY_FAKE_NVML);
  fake_ = &fake;
  settings_.gpu = GpuStatistics::Options{kFakeBusId, fake.path(), std::chrono::milliseconds(1)};
  settings_.ceiling = {"another card", 24e12};
  config_.ceilings_file = "ceilings.json";
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const Json entry = log_of(1);
  const std::string line = testing::internal::GetCapturedStdout();
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("ceilings.json was measured on 'another card', this card is 'Fake card'"), std::string::npos)
      << told;
  ASSERT_TRUE(entry.contains("gpu_power_watts")) << entry.dump();
  EXPECT_DOUBLE_EQ(entry["gpu_power_watts"].get<double>(), 412.5);
  EXPECT_DOUBLE_EQ(entry["gpu_utilization_max"].get<double>(), 0.93);
  EXPECT_EQ(entry["gpu_throttle"], "power cap 100%");
  EXPECT_NE(line.find("12 TFLOP/s (25% of the ceiling)  gpu 93%  412 W  64C  power cap"), std::string::npos) << line;
}

TEST_F(Observer, ACardThatCannotBeWatchedIsAWarning) {
  settings_.gpu = GpuStatistics::Options{"0", "/no/such/libnvidia-ml.so", std::chrono::hours(1)};
  testing::internal::CaptureStderr();
  const Json entry = log_of(1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("no GPU statistics: cannot open NVML"), std::string::npos);
  EXPECT_TRUE(entry.contains("flops_per_second"));
  EXPECT_FALSE(entry.contains("gpu_power_watts"));
}

}  // namespace
}  // namespace convoy
