#include "checkpoint/train_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "test_files.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

TrainingState full_state() {
  TrainingState state;
  state.convoy_version = "0.1.0";
  state.step = 1200;
  state.adam_step = 1198;
  state.schedule_step = 1199;
  state.skipped_steps = 2;
  state.global_batch_size = 64;
  state.seed = std::numeric_limits<std::uint64_t>::max();
  state.data_seed = 43;
  state.data = {3, 512, 76800, 123456789012, "00ff"};
  state.counters = {{"evaluations", 6}, {"early_stopping", 0}};
  state.loss_scale = LossScaleState{65536, 1200, 700, 2};
  state.plateau = PlateauMemory{0.01, 1.0 / 3, 4, 1};
  state.best = BestMetric{"eval_loss", 0.1 + 0.2, 1000};
  state.best_saved = BestMetric{"eval_loss", 0.5, 900};
  return state;
}

TEST(TrainingState, RoundTrips) {
  const TemporaryFolder folder;
  for (const TrainingState& state : {full_state(), TrainingState{}}) {
    write_plain(folder / kTrainingStateFile, training_state_text(state));
    EXPECT_EQ(read_training_state(folder.path()), state);
  }
}

TEST(TrainingState, KeepsNumbersThatAreNotFinite) {
  TrainingState state = full_state();
  state.plateau->best = -std::numeric_limits<double>::infinity();
  state.best->value = std::numeric_limits<double>::quiet_NaN();
  const TrainingState back = training_state_from_json(parse_json(training_state_text(state), "x"), "x");
  EXPECT_EQ(back.plateau, state.plateau);
  EXPECT_TRUE(std::isnan(back.best->value));
}

TEST(TrainingState, EveryKeyIsNeededAndNoOtherIsKnown) {
  const Json whole = to_json(full_state());
  const std::vector<std::string> objects = {"", "data", "loss_scale", "plateau", "best", "best_saved"};
  for (const std::string& object : objects) {
    const Json inner = object.empty() ? whole : whole[object];
    for (const auto& [key, value] : inner.items()) {
      Json lacking = whole;
      (object.empty() ? lacking : lacking[object]).erase(key);
      const std::string name = object.empty() ? key : object + "." + key;
      EXPECT_THAT(error_of([&] { training_state_from_json(lacking, "f.json"); }), HasSubstr("'" + name + "'"));
      Json wrong = whole;
      (object.empty() ? wrong : wrong[object])[key] = Json::array({1});
      EXPECT_THAT(error_of([&] { training_state_from_json(wrong, "f.json"); }), HasSubstr(name));
    }
    Json extra = whole;
    (object.empty() ? extra : extra[object])["stepp"] = 1;
    EXPECT_THAT(error_of([&] { training_state_from_json(extra, "f.json"); }), HasSubstr("unknown key '"));
  }
}

TEST(TrainingState, RefusesWhatItDoesNotKnow) {
  Status status = Status::kDone;
  const auto refuse = [&](const std::string& text) {
    return error_of([&] { training_state_from_json(parse_json(text, "f.json"), "f.json"); }, &status);
  };
  EXPECT_EQ(
      refuse(R"({"format_version": 2})"),
      "the training state has format 2, and this version of Convoy reads formats up to 1 [f.json]; resume with the "
      "newer version of Convoy that wrote it");
  EXPECT_EQ(status, Status::kData);
  EXPECT_THAT(refuse(R"({"format_version": 0})"), HasSubstr("format_version 0 does not exist"));
  EXPECT_THAT(refuse("[]"), HasSubstr("not a training state"));
  Json json = to_json(full_state());
  json["step"] = 1.5;
  EXPECT_THAT(error_of([&] { training_state_from_json(json, "f.json"); }), HasSubstr("'step' is not a whole number"));
  json["step"] = std::numeric_limits<std::uint64_t>::max();
  EXPECT_THAT(error_of([&] { training_state_from_json(json, "f.json"); }), HasSubstr("'step' is not a whole number"));
  json = to_json(full_state());
  json["seed"] = -1;
  EXPECT_THAT(error_of([&] { training_state_from_json(json, "f.json"); }), HasSubstr("'seed' is not"));
}

TEST(TrainingState, ADamagedFileIsADataError) {
  const TemporaryFolder folder;
  Status status = Status::kDone;
  EXPECT_THAT(error_of([&] { read_training_state(folder.path()); }, &status), HasSubstr("training_state.json"));
  EXPECT_EQ(status, Status::kStorage);
  write_plain(folder / kTrainingStateFile, training_state_text(full_state()).substr(0, 100));
  EXPECT_THAT(error_of([&] { read_training_state(folder.path()); }, &status), HasSubstr("not valid JSON"));
  EXPECT_EQ(status, Status::kData);
}

}  // namespace
}  // namespace convoy
