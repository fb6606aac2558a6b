#include "config/run_config.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <random>

#include "base/files.h"
#include "config/key_registry.h"
#include "config_support.h"

namespace convoy {
namespace {

using testing::ElementsAre;

std::string write_temporary(const std::string& name, const std::string& text) {
  const auto path = std::filesystem::path(testing::TempDir()) / ("convoy_config_" + std::to_string(::getpid()) + name);
  write_file_atomic(path, text);
  return path.string();
}

TEST(RunConfig, Fp8StandsBesideBf16) {
  const RunConfig config = parse_run_text("fp8: true", "run.yaml");
  EXPECT_TRUE(config.fp8);
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_EQ(config.source_of("dtype"), "fp8, run.yaml:1");
  EXPECT_EQ(parse_run_text("fp8: true\nbf16: true", "run.yaml").source_of("dtype"), "bf16, run.yaml:2");
  EXPECT_FALSE(parse_run_text("bf16: true", "run.yaml").fp8);
  EXPECT_FALSE(parse_run_text("fp8: false\nfp16: true", "run.yaml").fp8);
}

TEST(RunConfig, YamlGivesTypedFields) {
  const RunConfig config = parse_run_text(R"(
model: models/tiny
train_files: [a.jsonl, "b c.jsonl"]
validation_files: v.jsonl
learning_rate: 1e-4
max_steps: 2e3
bf16: yes
eval_strategy: steps
eval_steps: 0.1
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs: {min_lr_rate: 0.1}
memory_limit: 12GiB
max_seq_length: 512
packing: concat
chat_format: qwen2.5
max_grad_norm: null
save_total_limit: 3
report_to: [tensorboard]
)",
                                          "run.yaml");
  EXPECT_EQ(config.model, "models/tiny");
  EXPECT_THAT(config.train_files, ElementsAre("a.jsonl", "b c.jsonl"));
  EXPECT_THAT(config.validation_files, ElementsAre("v.jsonl"));
  EXPECT_EQ(config.learning_rate, 1e-4);
  EXPECT_EQ(config.max_steps, 2000);
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_EQ(config.eval_strategy, Interval::kSteps);
  EXPECT_EQ(config.eval_steps, 0.1);
  EXPECT_EQ(config.lr_scheduler_type, "cosine_with_min_lr");
  EXPECT_EQ(config.lr_scheduler_kwargs, R"({"min_lr_rate":0.1})");
  EXPECT_EQ(config.memory_limit, 12LL << 30);
  EXPECT_EQ(config.seq_length, 512);
  EXPECT_EQ(config.packing, PackingMode::kConcat);
  EXPECT_EQ(config.chat_format, ChatSetting::kQwen25);
  EXPECT_EQ(config.max_grad_norm, 0);
  EXPECT_EQ(config.save_total_limit, 3);
  EXPECT_TRUE(config.reports_to_tensorboard());
  EXPECT_EQ(config.source_of("learning_rate"), "run.yaml:5");
  EXPECT_EQ(config.source_of("seq_length"), "run.yaml:13");
  EXPECT_EQ(config.source_of("dtype"), "bf16, run.yaml:7");
  EXPECT_EQ(config.source_of("weight_decay"), "default");
  EXPECT_TRUE(config.notes.empty()) << config.notes.front();
}

TEST(RunConfig, JsonGivesTheSame) {
  const RunConfig config = parse_run_text(
      "{\n\t\"learning_rate\": 1e-4,\n\t\"train_files\": [\"a\"],\n"
      "\t\"max_steps\": 7,\n\"from_scratch\": true,\n\"model_config\": {\"n\": 1}}",
      "run.json");
  EXPECT_EQ(config.learning_rate, 1e-4);
  EXPECT_EQ(config.max_steps, 7);
  EXPECT_EQ(config.source_of("max_steps"), "run.json:4");
  EXPECT_EQ(config.model_config, R"({"n":1})");
}

TEST(RunConfig, DefaultsAreThoseOfTrainingArguments) {
  const RunConfig config = parse_run_text("", "run.yaml");
  EXPECT_EQ(config.learning_rate, 5e-5);
  EXPECT_EQ(config.per_device_train_batch_size, 8);
  EXPECT_EQ(config.num_train_epochs, 3);
  EXPECT_EQ(config.max_grad_norm, 1);
  EXPECT_EQ(config.seed, 42);
  EXPECT_EQ(config.save_steps, 500);
  EXPECT_EQ(config.lr_scheduler_type, "linear");
  EXPECT_FALSE(config.dtype.has_value());
  EXPECT_TRUE(config.sources.empty());
}

TEST(RunConfig, FlagsWinOverTheFile) {
  const std::string file = write_temporary("a.yaml", "learning_rate: 1e-4\nmax_steps: 10\nbf16: true\n");
  const RunConfig config = parse_run_config({"--learning-rate=3e-4", file, "--no-bf16"});
  EXPECT_EQ(config.learning_rate, 3e-4);
  EXPECT_EQ(config.max_steps, 10);
  EXPECT_EQ(config.bf16, false);
  EXPECT_EQ(config.source_of("learning_rate"), "--learning-rate");
  EXPECT_EQ(config.source_of("max_steps"), file + ":2");
  std::filesystem::remove(file);
}

TEST(RunConfig, FlagForms) {
  EXPECT_EQ(parse_run_config({"--bf16"}).bf16, true);
  EXPECT_EQ(parse_run_config({"--bf16", "false"}).bf16, false);
  EXPECT_EQ(parse_run_config({"--bf16=1"}).bf16, true);
  EXPECT_EQ(parse_run_config({"--no_logging_nan_inf_filter"}).logging_nan_inf_filter, false);
  EXPECT_EQ(parse_run_config({"--no-deterministic", "--seed", "1"}).deterministic, false);
  EXPECT_EQ(parse_run_config({"--max_steps", "-1"}).max_steps, -1);
  EXPECT_THAT(parse_run_config({"--train_files", "a", "b", "--seed", "3"}).train_files, ElementsAre("a", "b"));
  EXPECT_THAT(parse_run_config({"--train-files=a b"}).train_files, ElementsAre("a b"));
  EXPECT_EQ(parse_run_config({"--lr_scheduler_kwargs", R"({"num_cycles": 2})"}).lr_scheduler_kwargs,
            R"({"num_cycles":2})");
  EXPECT_EQ(parse_run_config({"--resume"}).resume_from_checkpoint, "true");
  EXPECT_EQ(parse_run_config({"--resume_from_checkpoint", "out/checkpoint-5"}).resume_from_checkpoint,
            "out/checkpoint-5");
  EXPECT_EQ(parse_run_config({"--no_resume"}).resume_from_checkpoint, std::nullopt);
  EXPECT_EQ(parse_run_config({"--save_total_limit", "None"}).save_total_limit, std::nullopt);
  EXPECT_EQ(parse_run_config({"--recompute", "none"}).recompute, RecomputeSetting::kNone);
  EXPECT_EQ(parse_run_config({"--eval_strategy", "no"}).eval_strategy, Interval::kNo);
  EXPECT_EQ(parse_run_config({"--output_dir", "null"}).output_dir, "null");
  EXPECT_EQ(parse_run_config({"--from_scratch", "--model_config", "{\"hidden_size\": 64}"}).model_config,
            R"({"hidden_size":64})");
}

TEST(RunConfig, LaterFlagCountsAndIsNoted) {
  const RunConfig config = parse_run_config({"--seed", "1", "--seed=2"});
  EXPECT_EQ(config.seed, 2);
  EXPECT_TRUE(has_note(config, "`seed` is given twice on the command line; the last one counts"));
}

TEST(RunConfig, Synonyms) {
  EXPECT_EQ(parse_run_text("gradient_checkpointing: true", "r.yaml").recompute, RecomputeSetting::kFull);
  EXPECT_EQ(parse_run_text("gradient_checkpointing: true\nrecompute: selective", "r.yaml").recompute,
            RecomputeSetting::kSelective);
  EXPECT_EQ(parse_run_text("optim: adamw_torch_fused", "r.yaml").optim, OptimizerName::kAdamW);
  EXPECT_EQ(parse_run_text("optim: lion_32bit", "r.yaml").optim, OptimizerName::kLion);
  EXPECT_EQ(parse_run_text("dtype: torch.bfloat16", "r.yaml").dtype, DType::kBF16);
  EXPECT_EQ(parse_run_text("dtype: float32", "r.yaml").dtype, DType::kF32);
  EXPECT_EQ(parse_run_text("packing: false", "r.yaml").packing, PackingMode::kPad);
  EXPECT_EQ(parse_run_text("save_strategy: no", "r.yaml").save_strategy, Interval::kNo);
  EXPECT_EQ(parse_run_text("{\"save_strategy\": false}", "r.json").save_strategy, Interval::kNo);
  EXPECT_EQ(parse_run_text("block_size: 8", "r.yaml").seq_length, 8);
  EXPECT_EQ(parse_run_text("learning_rate: \"1e-4\"", "r.yaml").learning_rate, 1e-4);
  EXPECT_EQ(parse_run_text("resume_from_checkpoint: ./true", "r.yaml").resume_from_checkpoint, "./true");
  EXPECT_EQ(parse_run_text("lr_scheduler_type: warmuplr", "r.yaml").lr_scheduler_type, "WarmupLR");
}

TEST(RunConfig, OldNamesAreNoted) {
  const RunConfig config =
      parse_run_text("evaluation_strategy: epoch\nper_gpu_train_batch_size: 2\nvalidation_split: 0.1", "r.yaml");
  EXPECT_EQ(config.eval_strategy, Interval::kEpoch);
  EXPECT_EQ(config.per_device_train_batch_size, 2);
  EXPECT_TRUE(has_note(config, "`evaluation_strategy` (r.yaml:1) is an old name of `eval_strategy`"));
  EXPECT_TRUE(has_note(config, "`per_gpu_train_batch_size` (r.yaml:2) is an old name"));
}

TEST(RunConfig, KeysWithoutEffectAreListedOncePerReason) {
  const RunConfig config = parse_run_text(
      "jit_mode_eval: true\ntorch_compile: true\nddp_timeout: 60\npush_to_hub: false\n"
      "fsdp: ''\nuse_ipex: false\ndeepspeed: null",
      "r.yaml");
  ASSERT_EQ(config.notes.size(), 2u);
  EXPECT_EQ(
      config.notes[0],
      "no effect: `jit_mode_eval` (r.yaml:1), `torch_compile` (r.yaml:2): it chooses among PyTorch's implementations; "
      "Convoy is a native program");
  EXPECT_EQ(config.notes[1],
            "no effect: `ddp_timeout` (r.yaml:3): timeout says how long a rank without progress is waited for");
}

TEST(RunConfig, KeysLeftWithoutEffectByOthersAreNoted) {
  const RunConfig config = parse_run_text("momentum: 0.9\nmax_steps: 5\nnum_train_epochs: 2\neval_steps: 10", "r.yaml");
  EXPECT_TRUE(has_note(config, "no effect: `momentum` (r.yaml:1): optim is not sgd"));
  EXPECT_TRUE(has_note(config, "no effect: `num_train_epochs` (r.yaml:3): max_steps is above 0"));
  EXPECT_TRUE(has_note(parse_run_text("tf32: true", "r.yaml"),
                       "no effect: `tf32` (r.yaml:1): the CPU device multiplies float32 as it is"));
  EXPECT_TRUE(has_note(parse_run_text("tf32: true\ndevice: cuda\nbf16: true", "r.yaml"), "dtype is not f32"));
  EXPECT_TRUE(parse_run_text("tf32: true\ndevice: cuda", "r.yaml").tf32);
  EXPECT_FALSE(has_note(parse_run_text("tf32: true\ndevice: cuda", "r.yaml"), "tf32"));
  EXPECT_FALSE(parse_run_text("tf32: null", "r.yaml").tf32);
  EXPECT_TRUE(has_note(config, "no effect: `eval_steps` (r.yaml:4): eval_strategy is not steps"));
  EXPECT_EQ(config.notes.size(), 3u);
}

TEST(RunConfig, Reporters) {
  EXPECT_TRUE(parse_run_text("report_to: all", "r.yaml").reports_to_tensorboard());
  EXPECT_FALSE(parse_run_text("report_to: none", "r.yaml").reports_to_tensorboard());
  const RunConfig config = parse_run_config({"--report_to", "wandb", "tensorboard"});
  EXPECT_TRUE(config.reports_to_tensorboard());
  EXPECT_TRUE(has_note(config, "`report_to` (--report_to): wandb is not built in"));
}

// A value for `key` that is allowed on its own.
SettingValue random_value(const Key& key, std::mt19937& random) {
  const auto pick = [&](std::int64_t count) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(count));
  };
  static const std::vector<std::string> texts = {
      "plain",     "with space",  "no", "1e5", "a: b", "# x",  "\"q\" \\ '", "null", "häßlich/*.jsonl", "{x",    "- a",
      "tab\there", "line\nbreak", "~",  "&a",  "*b",   "日本", "[1]",        "true", " lead",           "trail "};
  if (key.nullable && pick(4) == 0 && key.kind != Key::Kind::kReal && key.kind != Key::Kind::kList) return {};
  switch (key.kind) {
    case Key::Kind::kBool:
      return pick(2) == 0;
    case Key::Kind::kInteger:
    case Key::Kind::kBytes:
      return std::min(static_cast<std::int64_t>(std::max(key.min, 0.0)) + 1 + pick(1000),
                      static_cast<std::int64_t>(std::min(key.max, 1e15)));
    case Key::Kind::kReal:
      return 0.0009765625 * static_cast<double>(1 + pick(900));
    case Key::Kind::kChoice:
      return pick(static_cast<std::int64_t>(key.get(RunConfig{}).index() == 0 ? 2 : key.words.back().index + 1));
    case Key::Kind::kList: {
      std::vector<std::string> list;
      for (std::int64_t i = pick(4); i > 0; --i) list.push_back(texts[static_cast<std::size_t>(pick(21))]);
      return list;
    }
    case Key::Kind::kMap:
      return std::string(R"({"min_lr_rate":0.1,"n":3,"s":"no","deep":{"a":[1,2.5,null,true,"1"]}})");
    default: {
      std::string text = texts[static_cast<std::size_t>(pick(21))];
      if (key.kind == Key::Kind::kTextOrMap && text[0] == '{') text = R"({"hidden_size":64})";
      if (key.kind == Key::Kind::kTextOrBool && text == "no") text = "./no";
      return text;
    }
  }
}

TEST(RunConfig, PrintedSettingsReadBackTheSame) {
  std::mt19937 random(7);
  int kept = 0;
  for (int round = 0; round < 1500; ++round) {
    RunConfig config;
    for (const Section& section : key_sections()) {
      for (const Key& key : section.keys) {
        if (key.effect != Key::Effect::kUsed || random() % 8 != 0) continue;
        if (key.name == "report_to" || key.name == "fp16" || key.name == "deepspeed") continue;
        key.set(config, random_value(key, random));
      }
    }
    const std::string text = print_resolved(config);
    RunConfig again;
    try {
      again = parse_run_text(text, "run.yaml");
    } catch (const Error& error) {
      const std::string what = error.what();  // random settings may contradict each other, and nothing else
      const bool contradiction =
          what.find("contradict") != std::string::npos || what.find("need") != std::string::npos ||
          what.find("both given") != std::string::npos || what.find("only for") != std::string::npos ||
          what.find("starts anew") != std::string::npos;
      ASSERT_TRUE(contradiction) << what << "\n" << text;
      continue;
    }
    ++kept;
    for (const Section& section : key_sections()) {
      for (const Key& key : section.keys) {
        if (key.effect != Key::Effect::kUsed) continue;
        if ((key.name == "dtype" || key.name == "recompute") && key.get(config) != key.get(again)) {
          EXPECT_TRUE(config.bf16.value_or(false) || config.fp8 || config.gradient_checkpointing.value_or(false));
          continue;
        }
        EXPECT_EQ(key.get(config), key.get(again)) << key.name << "\n" << text;
      }
    }
  }
  EXPECT_GT(kept, 100);
}

}  // namespace
}  // namespace convoy
