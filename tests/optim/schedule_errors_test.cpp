#include <gtest/gtest.h>

#include "base/error.h"
#include "optim/schedule.h"

namespace convoy {
namespace {

std::string failure(const std::string& type, const std::string& parameters, double rate = 1e-3) {
  try {
    make_schedule({type, rate, 10, 100, parameters, false});
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "no error for " << type << " " << parameters;
  return "";
}

void expect_failure(const std::string& type, const std::string& parameters, const std::string& part) {
  const std::string text = failure(type, parameters);
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(ScheduleErrors, UnknownType) {
  expect_failure("cosin", "{}", "there is no schedule 'cosin', did you mean 'cosine'?");
  expect_failure("zzzzzzzzzzzz", "{}", "choose one of linear, cosine");
}

TEST(ScheduleErrors, UnknownParameter) {
  expect_failure("cosine", R"({"num_cycle": 1})", "cosine has no parameter 'num_cycle', did you mean 'num_cycles'?");
  expect_failure("cosine", R"({"num_cycle": 1})", "it has num_cycles");
  expect_failure("linear", R"({"a": 1})", "it has none");
  expect_failure("reduce_lr_on_plateau", R"({"patienc": 1})", "did you mean 'patience'?");
}

TEST(ScheduleErrors, Values) {
  expect_failure("cosine", "[]", "must be a map");
  expect_failure("cosine", "{", "not valid JSON");
  expect_failure("cosine", R"({"num_cycles": "x"})", R"(cosine: `num_cycles` must be a number, not "x")");
  expect_failure("polynomial", R"({"lr_end": 1})", "`lr_end` must be at least 0 and below learning_rate, not 1");
  expect_failure("polynomial", R"({"lr_end": -1})", "`lr_end` must be at least 0");
  expect_failure("inverse_sqrt", R"({"timescale": 0})", "`timescale` must be above 0, not 0");
  expect_failure("cosine_with_min_lr", "{}", "`min_lr` or `min_lr_rate` is required");
  expect_failure("cosine_with_min_lr", R"({"min_lr": 0, "min_lr_rate": 0})",
                 "`min_lr` and `min_lr_rate` exclude each other");
  expect_failure("cosine_with_min_lr", R"({"min_lr": 1})", "`min_lr` must lie between 0 and learning_rate");
  expect_failure("cosine_warmup_with_min_lr", R"({"min_lr_rate": 2})", "`min_lr_rate` must lie between 0 and 1");
  expect_failure("warmup_stable_decay", "{}",
                 "`num_decay_steps` is required [lr_scheduler_kwargs]; give it in lr_scheduler_kwargs");
  expect_failure("warmup_stable_decay", R"({"num_decay_steps": 1.5})", "must be a whole number of at least 0, not 1.5");
  expect_failure("warmup_stable_decay", R"({"num_decay_steps": 91})",
                 "`num_decay_steps` is 91: warm-up (10), stable (0) and decay are more than the 100 steps of the run");
  expect_failure("warmup_stable_decay", R"({"num_decay_steps": 1, "decay_type": "exp"})",
                 R"(`decay_type` must be one of cosine, linear, 1-sqrt, not "exp")");
  expect_failure("WarmupLR", R"({"warmup_type": "sqrt"})", "`warmup_type` must be one of log, linear");
  expect_failure("WarmupDecayLR", R"({"total_num_steps": 0})", "`total_num_steps` must be above 0");
  expect_failure("LRRangeTest", R"({"lr_range_test_min_lr": 0})", "`lr_range_test_min_lr` must be above 0, not 0");
  expect_failure("LRRangeTest", R"({"lr_range_test_step_size": 0})", "`lr_range_test_step_size` must be above 0");
  expect_failure("LRRangeTest", R"({"lr_range_test_staircase": 1})", "must be true or false, not 1");
  expect_failure("reduce_lr_on_plateau", R"({"factor": 1})", "`factor` must be below 1, not 1");
}

TEST(ScheduleErrors, OneCycle) {
  const std::string range = R"({"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3)";
  expect_failure("OneCycle", "{}", "`cycle_min_lr` is required");
  expect_failure("OneCycle", range + "}", "`cycle_momentum` is not supported, and true unless given");
  const std::string fixed = range + R"(, "cycle_momentum": false)";
  expect_failure("OneCycle", fixed + R"(, "cycle_min_mom": 0.8})",
                 "`cycle_min_mom` has no meaning without cycle_momentum");
  expect_failure("OneCycle", fixed + R"(, "cycle_first_stair_count": 2})", "the cycle has no stairs");
  expect_failure("OneCycle", fixed + R"(, "cycle_first_step_size": 0})", "`cycle_first_step_size` must be above 0");
  expect_failure("OneCycle", fixed + R"(, "cycle_second_step_size": -1})", "`cycle_second_step_size` must be above 0");
  expect_failure("OneCycle", fixed + R"(, "decay_step_size": -1})", "`decay_step_size` must be at least 0");
}

}  // namespace
}  // namespace convoy
