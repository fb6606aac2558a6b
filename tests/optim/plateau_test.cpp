#include <gtest/gtest.h>

#include <limits>

#include "optim/schedule.h"

namespace convoy {
namespace {

ScheduleSettings plateau(const std::string& parameters, bool greater_is_better = false) {
  return {"reduce_lr_on_plateau", 1.0, 0, 100, parameters, greater_is_better};
}

TEST(Plateau, LowersAfterPatience) {
  PlateauState state(plateau(R"({"patience": 2, "factor": 0.5})"));
  EXPECT_FALSE(state.observe(3.0));
  EXPECT_FALSE(state.observe(2.0));
  EXPECT_FALSE(state.observe(2.0));
  EXPECT_FALSE(state.observe(1.9999));  // within the threshold of 1e-4: no better
  EXPECT_TRUE(state.observe(2.5));
  EXPECT_EQ(state.learning_rate(), 0.5);
  EXPECT_FALSE(state.observe(1.0));
  EXPECT_EQ(state.learning_rate(), 0.5);
}

TEST(Plateau, CooldownLetsBadEvaluationsPass) {
  PlateauState state(plateau(R"({"patience": 0, "factor": 0.1, "cooldown": 2})"));
  state.observe(1.0);
  EXPECT_TRUE(state.observe(1.0));
  EXPECT_FALSE(state.observe(1.0));
  EXPECT_FALSE(state.observe(1.0));
  EXPECT_TRUE(state.observe(1.0));
  EXPECT_NEAR(state.learning_rate(), 0.01, 1e-15);
}

TEST(Plateau, StopsAtTheMinimum) {
  PlateauState state(plateau(R"({"patience": 0, "factor": 0.1, "min_lr": 0.05})"));
  state.observe(1.0);
  EXPECT_TRUE(state.observe(1.0));
  EXPECT_TRUE(state.observe(1.0));
  EXPECT_EQ(state.learning_rate(), 0.05);
  EXPECT_FALSE(state.observe(1.0));
}

TEST(Plateau, Directions) {
  PlateauState up(plateau(R"({"patience": 0})", true));
  EXPECT_FALSE(up.observe(0.5));
  EXPECT_FALSE(up.observe(0.6));
  EXPECT_TRUE(up.observe(0.6));
  PlateauState down(plateau(R"({"patience": 0, "mode": "min", "threshold_mode": "abs", "threshold": 0.1})", true));
  EXPECT_FALSE(down.observe(0.5));
  EXPECT_FALSE(down.observe(0.3));
  EXPECT_TRUE(down.observe(0.25));
}

TEST(Plateau, NotANumberIsNeverBetter) {
  PlateauState state(plateau(R"({"patience": 1})"));
  EXPECT_FALSE(state.observe(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_TRUE(state.observe(std::numeric_limits<double>::quiet_NaN()));
}

TEST(Plateau, RestoredStateGoesOnTheSame) {
  const ScheduleSettings settings = plateau(R"({"patience": 1, "cooldown": 1})");
  const double metrics[] = {3, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0.5, 0.6, 0.7, 0.8};
  for (std::size_t cut = 0; cut < std::size(metrics); ++cut) {
    PlateauState whole(settings), first(settings), second(settings);
    for (std::size_t i = 0; i < std::size(metrics); ++i) {
      if (i == cut) second.restore(first.memory());
      whole.observe(metrics[i]);
      (i < cut ? first : second).observe(metrics[i]);
    }
    EXPECT_EQ(whole.memory(), second.memory()) << cut;
  }
}

TEST(Plateau, AsAScheduleItIsConstant) {
  const Schedule schedule = make_schedule(plateau("{}"));
  EXPECT_EQ(schedule.at(0), 1.0);
  EXPECT_EQ(schedule.at(99), 1.0);
}

}  // namespace
}  // namespace convoy
