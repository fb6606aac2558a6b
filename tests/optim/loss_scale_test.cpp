#include "optim/loss_scale.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace convoy {
namespace {

// The scale before each step of a script: 'x' overflows, '.' does not.
std::vector<double> trace(LossScaler& scaler, const std::string& script) {
  std::vector<double> scales;
  for (const char step : script) {
    scaler.update(step == 'x');
    scales.push_back(scaler.scale());
  }
  return scales;
}

TEST(LossScaler, DeepSpeedsDefaults) {
  LossScaler scaler({});
  EXPECT_EQ(scaler.scale(), 65536);
  // The first overflow only uses up the hysteresis; then every one halves.
  EXPECT_EQ(trace(scaler, "xxx"), (std::vector<double>{65536, 32768, 16384}));
  EXPECT_EQ(scaler.state().hysteresis, 1);
  // Doubles at iteration 2 + 1 + 1000, and the hysteresis is full again.
  for (int i = 3; i < 1003; ++i) {
    scaler.update(false);
    ASSERT_EQ(scaler.scale(), 16384) << i;
  }
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_EQ(scaler.state().hysteresis, 2);
}

TEST(LossScaler, ShortWindowWithoutHysteresis) {
  LossScaleSettings settings;
  settings.initial_scale_power = 4;
  settings.loss_scale_window = 2;
  settings.hysteresis = 1;
  LossScaler scaler(settings);
  // last overflow -1: iteration 2 is the second clean one after it.
  EXPECT_EQ(trace(scaler, "...x..."), (std::vector<double>{16, 16, 32, 16, 16, 16, 32}));
}

TEST(LossScaler, ConsecutiveHysteresisRefillsAtEachCleanStep) {
  LossScaleSettings settings;
  settings.initial_scale_power = 8;
  settings.consecutive_hysteresis = true;
  LossScaler scaler(settings);
  EXPECT_EQ(trace(scaler, "x.x.x"), (std::vector<double>{256, 256, 256, 256, 256}));
  EXPECT_EQ(trace(scaler, "xx"), (std::vector<double>{128, 64}));
}

TEST(LossScaler, EndsAtTheSmallestScale) {
  LossScaleSettings settings;
  settings.initial_scale_power = 3;
  settings.hysteresis = 1;
  settings.min_loss_scale = 2;
  LossScaler scaler(settings);
  EXPECT_EQ(trace(scaler, "xx"), (std::vector<double>{4, 2}));
  try {
    scaler.update(true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kNumerics);
    EXPECT_NE(std::string(error.what()).find("Current loss scale already at minimum"), std::string::npos);
  }
}

TEST(LossScaler, SixteenHalvingsFromTheDefault) {
  LossScaleSettings settings;
  LossScaler scaler(settings);
  scaler.update(true);  // hysteresis
  for (int i = 0; i < 16; ++i) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_THROW(scaler.update(true), Error);
}

TEST(LossScaler, TheConstantScaleStays) {
  LossScaleSettings settings;
  settings.loss_scale = 128;
  LossScaler scaler(settings);
  EXPECT_FALSE(scaler.dynamic());
  EXPECT_EQ(trace(scaler, "x.x"), (std::vector<double>{128, 128, 128}));
  EXPECT_NE(scaler.update(true), "");
}

TEST(LossScaler, RestoresItsState) {
  LossScaler first({});
  trace(first, "xx..x.");
  LossScaler second({});
  second.restore(first.state());
  EXPECT_EQ(trace(first, "x...x"), trace(second, "x...x"));
  EXPECT_EQ(first.state(), second.state());
}

TEST(LossScaler, RefusesSettingsOutOfRange) {
  for (const auto change :
       {+[](LossScaleSettings& s) { s.loss_scale = -1; }, +[](LossScaleSettings& s) { s.hysteresis = 0; },
        +[](LossScaleSettings& s) { s.loss_scale_window = 0; }, +[](LossScaleSettings& s) { s.min_loss_scale = 0; },
        +[](LossScaleSettings& s) { s.initial_scale_power = 200; }}) {
    LossScaleSettings settings;
    change(settings);
    EXPECT_THROW(LossScaler{settings}, Error);
  }
}

}  // namespace
}  // namespace convoy
