#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/json.h"

namespace convoy {
namespace {

ScheduleSettings settings(const std::string& type, double rate, std::int64_t warmup, std::int64_t total,
                          const std::string& parameters = "{}") {
  return {type, rate, warmup, total, parameters, false};
}

TEST(Schedule, GoldenValuesOfTransformers) {
  const Json golden = read_json(std::string(CONVOY_TEST_DATA) + "/schedules.json");
  ASSERT_GE(golden.size(), 9u);
  for (const auto& [type, entry] : golden.items()) {
    const Schedule schedule =
        make_schedule(settings(type, entry["base_lr"].get<double>(), entry["warmup"].get<std::int64_t>(),
                               entry["total"].get<std::int64_t>(), entry["kwargs"].dump()));
    EXPECT_EQ(schedule.type(), type);
    ASSERT_EQ(entry["lr_of_step"].size(), 101u);
    for (std::size_t step = 0; step < entry["lr_of_step"].size(); ++step) {
      const double wanted = entry["lr_of_step"][step].get<double>();
      EXPECT_NEAR(schedule.at(static_cast<std::int64_t>(step)), wanted, 1e-9 * std::max(wanted, 1e-4)) << type << step;
    }
  }
}

TEST(Schedule, DeepSpeedWarmup) {
  const std::string log = R"({"warmup_min_lr": 0, "warmup_max_lr": 2e-5, "warmup_num_steps": 1000})";
  const Schedule schedule = make_schedule(settings("WarmupLR", 1, 0, 5000, log));
  EXPECT_EQ(schedule.at(0), 0);
  EXPECT_EQ(schedule.at(1), 0);
  EXPECT_NEAR(schedule.at(2), 2e-5 * std::log(2.0) / std::log(1000.0), 1e-18);
  EXPECT_NEAR(schedule.at(2), 2.00687e-6, 1e-11);
  EXPECT_NEAR(schedule.at(101), 1.33621e-5, 1e-10);
  EXPECT_NEAR(schedule.at(1000), 2e-5, 1e-18);
  EXPECT_EQ(schedule.at(4000), 2e-5);
  const std::string linear = R"({"warmup_max_lr": 2e-5, "warmup_num_steps": 1000, "warmup_type": "linear"})";
  EXPECT_NEAR(make_schedule(settings("WarmupLR", 1, 0, 5000, linear)).at(501), 1e-5, 1e-18);
}

TEST(Schedule, DeepSpeedFillsFromTheRun) {
  const Schedule filled = make_schedule(settings("WarmupDecayLR", 3e-4, 10, 100));
  const Schedule given = make_schedule(
      settings("WarmupDecayLR", 7, 99, 7,
               R"({"warmup_max_lr": 3e-4, "warmup_num_steps": 10, "total_num_steps": 100, "warmup_min_lr": "0"})"));
  for (std::int64_t step = 0; step < 130; ++step) EXPECT_EQ(filled.at(step), given.at(step));
  EXPECT_EQ(make_schedule(settings("WarmupLR", 3e-4, 0, 100)).at(1000), 3e-4);  // 1000 steps of warm-up by default
  EXPECT_LT(make_schedule(settings("WarmupLR", 3e-4, 0, 100)).at(999), 3e-4);
}

TEST(Schedule, DeepSpeedWarmupDecay) {
  const Schedule schedule = make_schedule(settings(
      "WarmupDecayLR", 1, 0, 0,
      R"({"total_num_steps": 100, "warmup_min_lr": 1e-5, "warmup_max_lr": 1e-3, "warmup_num_steps": 10, "warmup_type": "linear"})"));
  EXPECT_EQ(schedule.at(0), 1e-5);
  EXPECT_NEAR(schedule.at(6), 1e-5 + 9.9e-4 * 0.5, 1e-15);
  EXPECT_NEAR(schedule.at(11), 1e-3, 1e-15);                 // t = 10 = N
  EXPECT_NEAR(schedule.at(56), 1e-5 + 9.9e-4 * 0.5, 1e-15);  // t = 55, half of the way down
  EXPECT_NEAR(schedule.at(101), 1e-5, 1e-15);
  EXPECT_NEAR(schedule.at(500), 1e-5, 1e-15);
}

TEST(Schedule, DeepSpeedWarmupCosine) {
  const Schedule schedule = make_schedule(settings(
      "WarmupCosineLR", 2e-3, 0, 0,
      R"({"total_num_steps": 100, "warmup_min_ratio": 0.1, "warmup_num_steps": 10, "cos_min_ratio": 0.01, "warmup_type": "linear"})"));
  EXPECT_EQ(schedule.at(0), 0);
  EXPECT_NEAR(schedule.at(1), 2e-3 * 0.1, 1e-15);
  EXPECT_NEAR(schedule.at(6), 2e-3 * (0.1 + 0.9 * 0.5), 1e-15);
  // t = 54: p = (54 − 10 + 1)/90 = 1/2
  EXPECT_NEAR(schedule.at(55), 2e-3 * (0.01 + 0.99 * 0.5), 1e-15);
  EXPECT_NEAR(schedule.at(100), 2e-3 * 0.01, 1e-15);
  EXPECT_NEAR(schedule.at(1000), 2e-3 * 0.01, 1e-15);
}

TEST(Schedule, DeepSpeedRangeTest) {
  const std::string text =
      R"({"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 10, "lr_range_test_step_rate": 5)";
  const Schedule line = make_schedule(settings("LRRangeTest", 1, 0, 0, text + "}"));
  EXPECT_NEAR(line.at(0), 1e-4, 1e-18);
  EXPECT_NEAR(line.at(5), 1e-4 * 3.5, 1e-18);
  EXPECT_NEAR(line.at(20), 1e-4 * 11, 1e-18);
  const Schedule stairs =
      make_schedule(settings("LRRangeTest", 1, 0, 0, text + R"(, "lr_range_test_staircase": true})"));
  EXPECT_NEAR(stairs.at(9), 1e-4, 1e-18);
  EXPECT_NEAR(stairs.at(10), 1e-4 * 6, 1e-18);
}

TEST(Schedule, DeepSpeedOneCycle) {
  const Schedule schedule = make_schedule(settings(
      "OneCycle", 1, 0, 0,
      R"({"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 10, "cycle_second_step_size": 30,
          "decay_lr_rate": 0.5, "decay_step_size": 20, "cycle_momentum": false})"));
  EXPECT_NEAR(schedule.at(0), 1e-4, 1e-15);
  EXPECT_NEAR(schedule.at(5), 5.5e-4, 1e-15);
  EXPECT_NEAR(schedule.at(10), 1e-3, 1e-15);
  EXPECT_NEAR(schedule.at(25), 5.5e-4, 1e-15);
  EXPECT_NEAR(schedule.at(40), 1e-4, 1e-15);
  EXPECT_NEAR(schedule.at(60), 1e-4 / 1.5, 1e-15);
  EXPECT_NEAR(schedule.at(80), 1e-4 / 2, 1e-15);
}

TEST(Schedule, MinimumAsAnAbsoluteRate) {
  const Schedule share = make_schedule(settings("cosine_with_min_lr", 2e-4, 10, 100, R"({"min_lr_rate": 0.1})"));
  const Schedule absolute = make_schedule(settings("cosine_with_min_lr", 2e-4, 10, 100, R"({"min_lr": 2e-5})"));
  for (std::int64_t step = 0; step <= 100; ++step) EXPECT_NEAR(share.at(step), absolute.at(step), 1e-18);
}

TEST(Schedule, CosineWarmupWithMinimum) {
  const Schedule schedule =
      make_schedule(settings("cosine_warmup_with_min_lr", 1e-3, 4, 12, R"({"min_lr_rate": 0.2})"));
  EXPECT_NEAR(schedule.at(0), 1e-3 / 4, 1e-15);
  EXPECT_NEAR(schedule.at(3), 1e-3, 1e-15);
  EXPECT_NEAR(schedule.at(7), 1e-3 * 0.6, 1e-15);   // p = (7 − 4 + 1)/8
  EXPECT_NEAR(schedule.at(11), 1e-3 * 0.2, 1e-15);  // p = 1
  const Schedule raised =
      make_schedule(settings("cosine_warmup_with_min_lr", 1e-3, 5, 12, R"({"min_lr": 0, "warmup_lr_rate": 0.2})"));
  EXPECT_NEAR(raised.at(0), 2e-4, 1e-15);
  EXPECT_NEAR(raised.at(2), 6e-4, 1e-15);
  EXPECT_NEAR(raised.at(4), 1e-3, 1e-15);
}

TEST(Schedule, WarmupStableDecayShapes) {
  const auto at = [](const std::string& parameters, std::int64_t step) {
    return make_schedule(settings("warmup_stable_decay", 1, 10, 100, parameters)).at(step);
  };
  EXPECT_NEAR(at(R"({"num_decay_steps": 40})", 5), 0.5, 1e-15);
  EXPECT_NEAR(at(R"({"num_decay_steps": 40})", 59), 1, 1e-15);
  EXPECT_NEAR(at(R"({"num_decay_steps": 40})", 80), 0.5, 1e-15);
  EXPECT_NEAR(at(R"({"num_decay_steps": 40, "decay_type": "linear", "min_lr_ratio": 0.2})", 90), 0.25 * 0.8 + 0.2,
              1e-15);
  EXPECT_NEAR(at(R"({"num_decay_steps": 40, "decay_type": "1-sqrt"})", 70), 0.5, 1e-15);
  EXPECT_NEAR(at(R"({"num_decay_steps": 40, "warmup_type": "cosine", "min_lr_ratio": 0.2})", 5), 0.5 * 0.8 + 0.2,
              1e-15);
  EXPECT_NEAR(at(R"({"num_decay_steps": 40, "warmup_type": "1-sqrt"})", 5), 1 - std::sqrt(0.5), 1e-15);
  EXPECT_NEAR(at(R"({"num_decay_steps": 10, "num_stable_steps": 20})", 45), 0, 1e-15);
  EXPECT_NEAR(at(R"({"num_decay_steps": 10, "num_stable_steps": 20, "min_lr_ratio": 0.1})", 60), 0.1, 1e-15);
}

// Of finetune-transformer-lm: 138 updates and a warm-up of 0.002 of them, that is of one.
TEST(Schedule, WarmupLinear) {
  const Schedule short_warmup = make_schedule(settings("warmup_linear", 6.25e-5, 1, 138));
  EXPECT_EQ(short_warmup.at(0), 0);
  EXPECT_NEAR(short_warmup.at(1), 6.25e-5 * 137 / 138, 1e-15);
  EXPECT_NEAR(short_warmup.at(69), 6.25e-5 / 2, 1e-15);
  const Schedule schedule = make_schedule(settings("warmup_linear", 1, 20, 100));
  EXPECT_NEAR(schedule.at(10), 0.5 * 0.9, 1e-15);
  EXPECT_NEAR(schedule.at(20), 0.8, 1e-15);
  EXPECT_NEAR(schedule.at(99), 0.01, 1e-15);
  EXPECT_EQ(schedule.at(100), 0);
  EXPECT_EQ(make_schedule(settings("warmup_linear", 1, 0, 10)).at(0), 1);
}

TEST(Schedule, InverseRootTimescales) {
  const Schedule given = make_schedule(settings("inverse_sqrt", 1, 10, 100, R"({"timescale": 40})"));
  EXPECT_NEAR(given.at(10), 1, 1e-15);
  EXPECT_NEAR(given.at(130), 0.5, 1e-15);
  EXPECT_NEAR(make_schedule(settings("inverse_sqrt", 1, 0, 100)).at(30'000), 0.5, 1e-15);
}

// Every schedule, over many shapes of run: finite, never negative, never above the peak.
TEST(Schedule, StaysBetweenZeroAndThePeak) {
  const std::vector<std::pair<std::string, std::string>> parameters = {
      {"cosine_with_min_lr", R"({"min_lr_rate": 0.1})"},
      {"cosine_warmup_with_min_lr", R"({"min_lr_rate": 0.1})"},
      {"warmup_stable_decay", R"({"num_decay_steps": 0})"},
      {"LRRangeTest", R"({"lr_range_test_min_lr": 1e-6, "lr_range_test_step_rate": 1e-3})"},
      {"OneCycle", R"({"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3, "cycle_momentum": false})"}};
  ASSERT_EQ(schedule_types().size(), 17u);
  for (const std::string& type : schedule_types()) {
    const auto own = std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) { return p.first == type; });
    for (const std::int64_t total : {1, 2, 7, 100}) {
      for (const std::int64_t warmup : {0, 1, 5}) {
        if (type == "warmup_stable_decay" && warmup > total) continue;
        const Schedule schedule =
            make_schedule(settings(type, 1e-3, warmup, total, own == parameters.end() ? "{}" : own->second));
        for (std::int64_t step = 0; step <= total + 3; ++step) {
          const double rate = schedule.at(step);
          EXPECT_TRUE(std::isfinite(rate) && rate >= 0 && rate <= 1e-3 * (1 + 1e-12))
              << type << " " << total << " " << warmup << " " << step << ": " << rate;
        }
      }
    }
  }
}

}  // namespace
}  // namespace convoy
