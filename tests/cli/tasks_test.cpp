// Whole runs of tasks: from a language model to a choice or a classification, on one and two ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "program.h"
#include "tiny_run.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using testing::Result;
using testing::run_convoy;

class Tasks : public testing::TinyRun {
 protected:
  Tasks() {
    std::ofstream choices(folder_ / "choices.csv"), classes(folder_ / "classes.tsv");
    choices << "story,ending1,ending2,label\n";
    classes << "label\ttext\n";
    for (int i = 0; i < 32; ++i) {
      const bool day = i * 7 % 3 == 0;
      choices << (day ? "The sun shines" : "The moon shines") << " on house " << i << ".,It is day.,It is night.,"
              << (day ? 1 : 2) << "\n";
      classes << (day ? "day" : "night") << "\tThe " << (day ? "sun" : "moon") << " shines on house " << i << "\n";
    }
  }
  // A small GPT-1 that has seen some text.
  std::string language_model() {
    const std::string folder = folder_ / "language";
    const std::string config =
        R"({"model_type": "openai-gpt", "vocab_size": 2200, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64})";
    std::vector<std::string> all = words(folder);
    *(std::find(all.begin(), all.end(), "--model_config") + 1) = config;
    const Result run = run_convoy(all);
    EXPECT_EQ(run.status, 0) << run.output;
    return folder;
  }
  std::vector<std::string> task(const std::string& model, const std::string& output, std::vector<std::string> more) {
    std::vector<std::string> all = {
        "train", "--model",         model,  "--output_dir",    output,  "--seq_length",    "24", "--train_batch_size",
        "8",     "--learning_rate", "3e-3", "--eval_strategy", "epoch", "--save_strategy", "no", "--threads",
        "1",     "--logging_steps", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static Json record_with(const std::string& run, const std::string& key) {
    const Json state = read_json(run + "/trainer_state.json");
    for (const Json& entry : state["log_history"]) {
      if (entry.contains(key)) return entry;
    }
    return Json::object();
  }
};

TEST_F(Tasks, AChoiceFromALanguageModel) {
  const std::string model = language_model(), data = folder_ / "choices.csv", one = folder_ / "one";
  const auto choice = [&](const std::string& output, std::vector<std::string> more) {
    more.insert(more.end(),
                {"--task", "multiple_choice", "--train_files", data, "--validation_files", data, "--test_files", data,
                 "--optim", "openai_adam", "--num_train_epochs", "50", "--lr_scheduler_type", "warmup_linear"});
    return task(model, output, more);
  };
  const Result run = run_convoy(choice(one, {"--per_device_train_batch_size", "2"}));
  ASSERT_EQ(run.status, 0) << run.output;
  const Json config = read_json(one + "/config.json");
  EXPECT_EQ(config["architectures"][0], "OpenAIGPTDoubleHeadsModel");
  EXPECT_EQ(config["vocab_size"], 2200);  // the tokenizer's new tokens fit
  const Json tokens = read_json(one + "/tokenizer_config.json")["added_tokens_decoder"];
  EXPECT_NE(tokens.dump().find("_classify_"), std::string::npos);
  const Json test = record_with(one, "test_accuracy");
  EXPECT_EQ(test["test_targets"], 32);
  EXPECT_GE(test["test_accuracy"].get<double>(), 0.9) << "a word decides";
  EXPECT_TRUE(test.contains("test_lm_loss"));
  EXPECT_FALSE(test.contains("test_perplexity"));
  const SafetensorsFile weights(one + "/model.safetensors");
  EXPECT_EQ(weights.find("multiple_choice_head.summary.weight").spec.shape, Shape({1, 32}));
  for (const char* stage : {"0", "2", "3"}) {  // the same bits on two ranks
    const std::string two = folder_ / (std::string("two") + stage);
    const Result ranks =
        run_convoy(choice(two, {"--per_device_train_batch_size", "2", "--num_processes", "2", "--zero_stage", stage,
                                "--stage3_param_persistence_threshold", "100"}));
    ASSERT_EQ(ranks.status, 0) << ranks.output;
    EXPECT_EQ(read_file(two + "/model.safetensors"), read_file(one + "/model.safetensors")) << stage;
    EXPECT_EQ(record_with(two, "test_accuracy")["test_loss"], test["test_loss"]) << stage;
  }
  // The result is a model to go on from; its tokenizer has the tokens now.
  const Result again =
      run_convoy({"train", "--model", one, "--output_dir", folder_ / "again", "--task", "multiple_choice",
                  "--train_files", data, "--seq_length", "24", "--max_steps", "1", "--fp16", "true"});
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_EQ(run_convoy({"generate", one, "--prompt", "The sun", "--max_new_tokens", "3"}).status, 0);
}

TEST_F(Tasks, AClassifierFromALanguageModel) {
  const std::string data = folder_ / "classes.tsv", made = folder_ / "classes";
  const Result run = run_convoy(task(language_model(), made,
                                     {"--task", "classification", "--train_files", data, "--validation_files", data,
                                      "--num_train_epochs", "8", "--per_device_train_batch_size", "8"}));
  ASSERT_EQ(run.status, 0) << run.output;
  const Json config = read_json(made + "/config.json");
  EXPECT_EQ(config["architectures"][0], "OpenAIGPTForSequenceClassification");
  EXPECT_EQ(config["id2label"], Json({{"0", "day"}, {"1", "night"}}));
  double last = 0;
  const Json state = read_json(made + "/trainer_state.json");
  for (const Json& entry : state["log_history"]) {
    if (entry.contains("eval_accuracy")) last = entry["eval_accuracy"];
  }
  EXPECT_GE(last, 0.9) << "a word decides";
  const SafetensorsFile weights(made + "/model.safetensors");
  EXPECT_EQ(weights.find("score.weight").spec.shape, Shape({2, 32}));
  const Result generates = run_convoy({"generate", made, "--prompt", "a"});
  EXPECT_NE(generates.status, 0);
  EXPECT_THAT(generates.output, HasSubstr("classification head"));
}

TEST_F(Tasks, WrongSettingsSayWhatToDo) {
  const std::string model = language_model();
  const Result no_class =
      run_convoy(task(model, folder_ / "a",
                      {"--task", "classification", "--train_files", folder_ / "choices.csv", "--text_field", "story",
                       "--validation_split", "0.2", "--class_names", "a", "b"}));
  EXPECT_NE(no_class.status, 0);
  EXPECT_THAT(no_class.output, HasSubstr("the label '2' is"));
  const Result no_column = run_convoy(task(model, folder_ / "b",
                                           {"--task", "classification", "--train_files", folder_ / "choices.csv",
                                            "--text_field", "stori", "--validation_split", "0.2"}));
  EXPECT_NE(no_column.status, 0);
  EXPECT_THAT(no_column.output, HasSubstr("did you mean 'story'"));
}

}  // namespace
}  // namespace convoy
