#include "monitor/trainer_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/files.h"
#include "monitor_support.h"

namespace convoy {
namespace {

// As transformers prints it: json.dumps(asdict(state), indent=2, sort_keys=True) and a newline.
constexpr const char* kText = R"({
  "best_global_step": 20,
  "best_metric": 1.5,
  "best_model_checkpoint": "out/checkpoint-20",
  "epoch": 0.5,
  "eval_steps": 10,
  "global_step": 20,
  "is_hyper_param_search": false,
  "is_local_process_zero": true,
  "is_world_process_zero": true,
  "log_history": [
    {
      "epoch": 0.25,
      "grad_norm": NaN,
      "learning_rate": 5e-05,
      "loss": 2.5,
      "step": 10
    },
    {
      "epoch": 0.5,
      "eval_loss": 1.5,
      "step": 20
    }
  ],
  "logging_steps": 10,
  "max_steps": 40,
  "num_input_tokens_seen": 4096,
  "num_train_epochs": 1,
  "save_steps": 0.1,
  "stateful_callbacks": {
    "EarlyStoppingCallback": {
      "args": {
        "early_stopping_patience": 3,
        "early_stopping_threshold": 0.001
      },
      "attributes": {
        "early_stopping_patience_counter": 1
      }
    },
    "TrainerControl": {
      "args": {
        "should_epoch_stop": false,
        "should_evaluate": false,
        "should_log": false,
        "should_save": true,
        "should_training_stop": false
      },
      "attributes": {}
    }
  },
  "total_flos": 1000000000000.0,
  "train_batch_size": 4,
  "trial_name": null,
  "trial_params": null
}
)";

TrainerState example() {
  TrainerState state;
  state.best_global_step = 20;
  state.best_metric = 1.5;
  state.best_model_checkpoint = "out/checkpoint-20";
  state.epoch = 0.5;
  state.global_step = 20;
  state.max_steps = 40;
  state.num_train_epochs = 1;
  state.logging_steps = state.eval_steps = 10;
  state.save_steps = 0.1;
  state.train_batch_size = 4;
  state.num_input_tokens_seen = 4096;
  state.total_flos = 1e12;
  state.log_history = {{{"loss", 2.5},
                        {"grad_norm", std::numeric_limits<double>::quiet_NaN()},
                        {"learning_rate", 5e-5},
                        {"epoch", 0.25},
                        {"step", std::int64_t{10}}},
                       {{"eval_loss", 1.5}, {"epoch", 0.5}, {"step", std::int64_t{20}}}};
  state.early_stopping = TrainerState::EarlyStopping{3, 1, 0.001};
  return state;
}

TEST(TrainerState, WritesAsTransformersDoes) {
  EXPECT_EQ(trainer_state_text(example()), kText);
}

TEST(TrainerState, ReadsWhatItWrites) {
  const TrainerState state = parse_trainer_state(kText, "trainer_state.json");
  EXPECT_EQ(trainer_state_text(state), kText);
  EXPECT_EQ(state.best_global_step, 20);
  EXPECT_EQ(state.save_steps, 0.1);
  EXPECT_EQ(state.early_stopping, (TrainerState::EarlyStopping{3, 1, 0.001}));
  ASSERT_EQ(state.log_history.size(), 2u);
  EXPECT_TRUE(std::isnan(*number_in(state.log_history[0], "grad_norm")));
}

TEST(TrainerState, DefaultsRoundTripThroughAFile) {
  const TemporaryFolder folder;
  TrainerState state;
  state.best_metric = -std::numeric_limits<double>::infinity();
  state.should_training_stop = true;
  write_trainer_state(folder.path() / "trainer_state.json", state);
  const TrainerState again = read_trainer_state(folder.path() / "trainer_state.json");
  EXPECT_EQ(trainer_state_text(again), trainer_state_text(state));
  EXPECT_EQ(again.best_metric, state.best_metric);
  EXPECT_TRUE(again.should_training_stop);
  EXPECT_FALSE(again.early_stopping.has_value());
  EXPECT_FALSE(again.best_global_step.has_value());
}

TEST(TrainerState, FilesOfOtherVersions) {
  const TrainerState state = parse_trainer_state(
      R"({"epoch": 1, "global_step": 7.0, "new_field": [1], "best_metric": null, "log_history": null})", "f");
  EXPECT_EQ(state.epoch, 1);
  EXPECT_EQ(state.global_step, 7);
  EXPECT_EQ(state.max_steps, 0);
  EXPECT_FALSE(state.best_metric.has_value());
}

TEST(TrainerState, Errors) {
  const auto failure = [](const std::string& text) {
    return message_of(Status::kData, [&] { parse_trainer_state(text, "state.json"); });
  };
  EXPECT_EQ(failure("[]"), "a trainer state must be a JSON object [state.json]");
  EXPECT_NE(failure("{").find("not valid JSON"), std::string::npos);
  EXPECT_EQ(failure(R"({"global_step": "x"})"), "`global_step` must be a whole number [state.json]");
  EXPECT_EQ(failure(R"({"global_step": NaN})"), "`global_step` must be a whole number [state.json]");
  EXPECT_EQ(failure(R"({"epoch": []})"), "`epoch` must be a number [state.json]");
  EXPECT_EQ(failure(R"({"best_model_checkpoint": 1})"), "`best_model_checkpoint` must be a text [state.json]");
  EXPECT_EQ(failure(R"({"log_history": 1})"), "`log_history` must be a list [state.json]");
  EXPECT_EQ(failure(R"({"log_history": [1]})"), "`log_history` must be a list of objects [state.json]");
  EXPECT_EQ(failure(R"({"stateful_callbacks": []})"), "`stateful_callbacks` must be an object [state.json]");
  EXPECT_EQ(failure(R"({"stateful_callbacks": {"TrainerControl": {"args": {"should_training_stop": 1}}}})"),
            "`should_training_stop` must be true or false [state.json]");
  message_of(Status::kStorage, [] { read_trainer_state("/no/such/trainer_state.json"); });
}

TEST(TrainerState, CutFilesGiveErrors) {
  const std::string text = kText;
  for (std::size_t size = 0; size + 2 < text.size(); size += 7)
    message_of(Status::kData, [&] { parse_trainer_state(text.substr(0, size), "f"); });
}

}  // namespace
}  // namespace convoy
