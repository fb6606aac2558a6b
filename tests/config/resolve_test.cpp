#include "config/resolve.h"

#include <gmock/gmock.h>

#include "base/files.h"
#include "config_support.h"

namespace convoy {
namespace {

TEST(Resolve, Steps) {
  RunConfig config;
  config.gradient_accumulation_steps = 4;
  config.per_device_train_batch_size = 2;
  EXPECT_EQ(global_batch_size(config, 1), 8);
  EXPECT_EQ(global_batch_size(config, 8), 64);
  EXPECT_EQ(steps_per_epoch(config, 8), 2);
  EXPECT_EQ(steps_per_epoch(config, 9), 3);
  EXPECT_EQ(steps_per_epoch(config, 3), 1);
  EXPECT_EQ(total_steps(config, 10), 30);
  config.num_train_epochs = 0.25;
  EXPECT_EQ(total_steps(config, 10), 3);
  config.max_steps = 7;
  EXPECT_EQ(total_steps(config, 10), 7);
}

TEST(Resolve, Warmup) {
  RunConfig config;
  EXPECT_EQ(warmup_steps(config, 100), 0);
  config.warmup_ratio = 0.03;
  EXPECT_EQ(warmup_steps(config, 110), 4);
  config.warmup_steps = 0.1;
  EXPECT_EQ(warmup_steps(config, 105), 11);
  config.warmup_steps = 12;
  EXPECT_EQ(warmup_steps(config, 105), 12);
}

TEST(Resolve, Intervals) {
  EXPECT_EQ(interval_steps(500, 10), 500);
  EXPECT_EQ(interval_steps(0.1, 105), 11);
  EXPECT_EQ(interval_steps(1e-9, 105), 1);
  RunConfig config;
  config.logging_steps = 20;
  EXPECT_EQ(eval_interval(config, 100), 20);
  config.eval_steps = 0.05;
  EXPECT_EQ(eval_interval(config, 100), 5);
}

TEST(Resolve, DType) {
  RunConfig config;
  EXPECT_EQ(resolve_dtype(config, DType::kBF16), DType::kBF16);
  EXPECT_EQ(resolve_dtype(config, DType::kF32), DType::kF32);
  EXPECT_EQ(resolve_dtype(config, std::nullopt), DType::kF32);
  EXPECT_EQ(usage_message([&] { resolve_dtype(config, DType::kF16); }),
            "the weights are stored as f16: it must be said what training computes in [dtype]; choose dtype: bf16, "
            "f32, or f16 "
            "(with loss scaling)");
  config.from_scratch = true;
  EXPECT_EQ(resolve_dtype(config, DType::kBF16), DType::kF32);
  config.dtype = DType::kBF16;
  EXPECT_EQ(resolve_dtype(config, DType::kF16), DType::kBF16);
}

TEST(Resolve, BestMetric) {
  RunConfig config;
  EXPECT_EQ(best_metric(config).name, "eval_loss");
  EXPECT_FALSE(best_metric(config).greater_is_better);
  config.metric_for_best_model = "eval_accuracy";
  EXPECT_EQ(best_metric(config).name, "eval_accuracy");
  EXPECT_TRUE(best_metric(config).greater_is_better);
  config.greater_is_better = false;
  EXPECT_FALSE(best_metric(config).greater_is_better);
  config.greater_is_better.reset();
  for (const char* falls : {"perplexity", "eval_perplexity", "eval_wer", "cer", "eval_loss"}) {
    config.metric_for_best_model = falls;
    EXPECT_FALSE(best_metric(config).greater_is_better) << falls;
  }
}

TEST(Resolve, ValidationCount) {
  RunConfig config;
  EXPECT_EQ(validation_count(config, 10), 0);
  config.validation_split = 0.25;
  EXPECT_EQ(validation_count(config, 10), 3);
  EXPECT_EQ(validation_count(config, 2), 1);
  config.validation_split = 9;
  EXPECT_EQ(validation_count(config, 10), 9);
  EXPECT_EQ(
      usage_message([&] { validation_count(config, 9); }),
      "`validation_split` sets 9 samples aside, and there are 9 [default]; set fewer aside, or give validation_files");
}

TEST(Resolve, Files) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("convoy_resolve_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  for (const char* name : {"b.jsonl", "a.jsonl", "c.txt"}) write_file_atomic(folder / name, "x");
  RunConfig config;
  config.train_files = {(folder / "c.txt").string(), (folder / "*.jsonl").string(), (folder / "a.jsonl").string()};
  EXPECT_THAT(resolve_files(config, "train_files"),
              testing::ElementsAre(folder / "c.txt", folder / "a.jsonl", folder / "b.jsonl"));
  EXPECT_TRUE(resolve_files(config, "validation_files").empty());
  config.validation_files = {"/no/such/*.txt"};
  EXPECT_EQ(
      usage_message([&] { resolve_files(config, "validation_files"); }),
      "`validation_files`: no file matches '/no/such/*.txt' [default]; check the path; it is relative to the folder "
      "that the command runs in");
  std::filesystem::remove_all(folder);
}

TEST(Resolve, TrainingInputs) {
  const auto missing = [](const std::string& text) {
    const RunConfig config = parse_run_text(text, "r.yaml");
    return usage_message([&] { require_training_inputs(config); });
  };
  EXPECT_EQ(missing(""), "no model is given; give `model` (a folder), or `from_scratch` and `model_config`");
  EXPECT_EQ(missing("from_scratch: true"),
            "`from_scratch` needs the model's shape [r.yaml:1]; give `model_config` (a "
            "config.json or a map), or `model` (a folder with one)");
  EXPECT_EQ(missing("from_scratch: true\nmodel_config: {a: 1}"),
            "no tokenizer is given; give `tokenizer` (a folder or file), or `model` (a folder)");
  EXPECT_EQ(missing("model: m"), "no training data is given; give `train_files`");
  require_training_inputs(parse_run_text("model: m\ntrain_files: a", "r.yaml"));
}

}  // namespace
}  // namespace convoy
