#include "config/deepspeed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/files.h"
#include "config/deepspeed_json.h"
#include "config/deepspeed_keys.h"
#include "config/resolve.h"
#include "optim/schedule.h"

namespace convoy {
namespace {

std::string example(const std::string& name) {
  return std::string(CONVOY_SOURCE_DIR) + "/examples/deepspeed/" + name;
}

// A run file with this DeepSpeed configuration written inline.
RunConfig with(const std::string& json, const std::string& more = "") {
  return parse_run_text("{\"deepspeed\": " + json + (more.empty() ? "" : ", " + more) + "}", "run.json");
}

std::string error_of(const std::string& json, const std::string& more = "") {
  try {
    with(json, more);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool notes_contain(const RunConfig& config, const std::string& text) {
  return std::any_of(config.notes.begin(), config.notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

TEST(DeepSpeedFiles, AnEmptyOneIsRefused) {
  for (const char* text : {"", " \n", "// nothing\n"}) {
    try {
      parse_deepspeed_json(text, "ds.json");
      ADD_FAILURE() << "no error for '" << text << "'";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("it is empty"), std::string::npos) << error.what();
    }
  }
}

bool warnings_contain(const RunConfig& config, const std::string& text) {
  return std::any_of(config.warnings.begin(), config.warnings.end(),
                     [&](const std::string& warning) { return warning.find(text) != std::string::npos; });
}

TEST(DeepSpeedFiles, GlmAsrZero2) {
  RunConfig config = parse_run_config({"--deepspeed", example("glm_asr_zero2.json")});
  EXPECT_EQ(config.zero_stage, 2);
  EXPECT_TRUE(config.fp16.value_or(false));
  EXPECT_EQ(config.dtype, DType::kF16);
  EXPECT_EQ(config.per_device_train_batch_size, 8);
  EXPECT_EQ(config.gradient_accumulation_steps, 4);
  EXPECT_EQ(config.optim, OptimizerName::kAdamW);
  EXPECT_DOUBLE_EQ(config.learning_rate, 1e-4);
  EXPECT_DOUBLE_EQ(config.weight_decay, 0.01);
  EXPECT_TRUE(config.decay_bias_norm);
  EXPECT_DOUBLE_EQ(config.adam_epsilon, 1e-8);
  EXPECT_EQ(config.lr_scheduler_type, "WarmupLR");
  EXPECT_NE(config.lr_scheduler_kwargs.find("\"warmup_num_steps\":1000"), std::string::npos)
      << config.lr_scheduler_kwargs;
  EXPECT_EQ(config.reduce_bucket_size, 200'000'000);
  EXPECT_EQ(config.allgather_bucket_size, 200'000'000);
  EXPECT_EQ(config.overlap_comm, true);
  EXPECT_EQ(config.offload_optimizer, OffloadDevice::kCpu);
  EXPECT_EQ(config.steps_per_print, 10);
  EXPECT_DOUBLE_EQ(config.max_grad_norm, 1);
  EXPECT_TRUE(notes_contain(config, "background_streaming"));
  EXPECT_TRUE(notes_contain(config, "no gradient_clipping"));
  for (const int ranks : {2, 4}) {
    RunConfig copy = config;
    resolve_batch(copy, ranks);
    EXPECT_EQ(global_batch_size(copy, ranks), 32 * ranks);
  }
}

TEST(DeepSpeedFiles, Glm4Zero2) {
  RunConfig config = parse_run_config({"--deepspeed", example("glm4_zero2.json")});
  EXPECT_EQ(config.zero_stage, 2);
  EXPECT_DOUBLE_EQ(config.adam_beta2, 0.95);
  EXPECT_DOUBLE_EQ(config.max_grad_norm, 1);
  EXPECT_EQ(config.train_batch_size, 32);
  EXPECT_EQ(config.dtype, DType::kF16);
  EXPECT_EQ(config.loss_scale_window, 1000);
  RunConfig four = config;
  resolve_batch(four, 4);
  EXPECT_EQ(global_batch_size(four, 4), 32);
  try {
    resolve_batch(config, 2);
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
                        "gradient_acc_step * world_size 32 != 4 * 2 * 2"),
              std::string::npos)
        << what;
    EXPECT_NE(what.find("these values fit 4 ranks"), std::string::npos) << what;
    EXPECT_NE(what.find("4 × 4"), std::string::npos) << what;
  }
}

TEST(DeepSpeedFiles, ActivationCheckpointingInHostMemory) {
  const auto with = [](const std::string& section, const std::string& device) {
    return parse_run_config({"--deepspeed", R"({"activation_checkpointing": )" + section + "}", "--device", device});
  };
  const RunConfig config = with(R"({"partition_activations": true, "cpu_checkpointing": true})", "cuda");
  EXPECT_EQ(config.recompute, RecomputeSetting::kFull);
  EXPECT_EQ(config.offload_activations, OffloadDevice::kCpu);
  EXPECT_FALSE(notes_contain(config, "offload_activations"));
  EXPECT_TRUE(notes_contain(with(R"({"cpu_checkpointing": true})", "cpu"), "`offload_activations`"));
  const RunConfig off = with(R"({"partition_activations": true, "cpu_checkpointing": false})", "cuda");
  EXPECT_EQ(off.recompute, RecomputeSetting::kFull);
  EXPECT_EQ(off.offload_activations, OffloadDevice::kNone);
}

TEST(DeepSpeedFiles, Glm4Zero3WithPipeline) {
  RunConfig config = parse_run_config({"--deepspeed", example("glm4_zero3_pipeline.json")});
  EXPECT_EQ(config.zero_stage, 3);
  EXPECT_EQ(config.stage3_max_live_parameters, 1'000'000'000);
  EXPECT_EQ(config.stage3_prefetch_bucket_size, 500'000'000);
  EXPECT_EQ(config.stage3_param_persistence_threshold, 1'000'000);
  EXPECT_EQ(config.offload_param, OffloadDevice::kCpu);
  EXPECT_EQ(config.recompute, RecomputeSetting::kFull);  // activation_checkpoint_interval
  EXPECT_TRUE(notes_contain(config, "sub_group_size"));
  EXPECT_TRUE(notes_contain(config, "pipeline.seed_layers"));
  resolve_batch(config, 4);
  EXPECT_EQ(global_batch_size(config, 4), 64);
}

TEST(DeepSpeedFiles, OffloadedWeights) {
  const auto on = [](const std::string& device, const std::string& param) {
    return parse_run_config({"--device", device, "--deepspeed",
                             R"({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 1e6,)"
                             R"( "offload_param": )" +
                                 param + "}}"});
  };
  const RunConfig gpu = on("cuda", R"({"device": "cpu", "pin_memory": true, "buffer_count": 5, "buffer_size": 1e8})");
  EXPECT_EQ(gpu.offload_param, OffloadDevice::kCpu);
  EXPECT_FALSE(notes_contain(gpu, "`offload_param`"));
  EXPECT_TRUE(notes_contain(gpu, "offload_param keeps small weights in host memory too"));
  EXPECT_TRUE(notes_contain(gpu, "offload_param.buffer_count"));
  EXPECT_TRUE(notes_contain(on("cpu", R"({"device": "cpu"})"), "the CPU device keeps them in host memory anyway"));
  const RunConfig none = on("cuda", R"({"device": "none"})");
  EXPECT_EQ(none.offload_param, OffloadDevice::kNone);
  EXPECT_FALSE(notes_contain(none, "small weights"));
  EXPECT_THROW(on("cuda", R"({"device": "nvme", "nvme_path": "/disk"})"), Error);
}

// Every row of the table: a noted key gives a note that names it and the reason, a refused one an error with the
// remedy, the others are accepted.
TEST(DeepSpeedKeys, EveryKeyDoesWhatTheTableSays) {
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    std::string path = key.path;
    if (path.ends_with(".*")) path.replace(path.size() - 1, 1, "some_key_of_it");
    std::string json = key.sample;
    std::string rest = path;
    while (true) {
      const std::size_t dot = rest.rfind('.');
      json = "{\"" + rest.substr(dot == std::string::npos ? 0 : dot + 1) + "\": " + json + "}";
      if (dot == std::string::npos) break;
      rest.resize(dot);
    }
    const bool sgd = path == "optimizer.params.momentum" || path == "optimizer.params.dampening";
    if (sgd) json = "{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"momentum\": 0.5, \"dampening\": 0.1}}}";
    switch (key.verdict) {
      case DeepSpeedKey::Verdict::kKey: {
        const std::string name = std::string(key.path).substr(std::string(key.path).rfind('.') + 1);
        const RunConfig config = with(json);
        EXPECT_TRUE(config.sources.contains(key.target)) << path << " does not set " << key.target;
        break;
      }
      case DeepSpeedKey::Verdict::kHandled:
        EXPECT_EQ(error_of(json), "no error") << json;
        break;
      case DeepSpeedKey::Verdict::kNoted: {
        const RunConfig config = with(json);
        EXPECT_TRUE(notes_contain(config, path)) << json;
        EXPECT_TRUE(notes_contain(config, key.text)) << json;
        break;
      }
      case DeepSpeedKey::Verdict::kRefused: {
        const std::string error = error_of(json);
        EXPECT_NE(error.find("`" + path + "` of DeepSpeed is not supported"), std::string::npos) << json << error;
        EXPECT_NE(error.find(key.text), std::string::npos) << error;
        break;
      }
    }
  }
}

TEST(DeepSpeedKeys, HandledKeysRefuseWhatIsNotThere) {
  for (const char* json : {R"({"sequence_parallel_size": 2})", R"({"tensor_parallel": {"autotp_size": 2}})",
                           R"({"pipeline": {"stages": 2}})", R"({"gradient_allreduce_op": "sum"})",
                           R"({"optimizer": {"type": "Lamb"}})", R"({"optimizer": {"type": "OneBitAdam"}})",
                           R"({"optimizer": {"type": "Adam", "params": {"bias_correction": false}}})",
                           R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}})"}) {
    EXPECT_NE(error_of(json).find("is not supported"), std::string::npos) << json << error_of(json);
  }
  EXPECT_NE(error_of(R"({"communication_data_type": "int8"})")
                .find("Supported data types: ['fp16', 'bf16', 'fp32']. Got: int8"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})").find("use cpu"),
            std::string::npos);
}

TEST(DeepSpeedKeys, GradientsHaveTheTypeThatIsSaid) {
  EXPECT_EQ(with(R"({"bf16": {"enabled": true}})").gradient_dtype, DType::kF32);
  EXPECT_EQ(with(R"({"data_types": {"grad_accum_dtype": null}})").gradient_dtype, DType::kF32);
  EXPECT_EQ(with(R"({"data_types": {"grad_accum_dtype": "fp32"}})").gradient_dtype, DType::kF32);
  EXPECT_EQ(with(R"({"data_types": {"grad_accum_dtype": "bf16"}})").gradient_dtype, DType::kBF16);
  EXPECT_EQ(with(R"({"data_types": {"grad_accum_dtype": "fp16"}})").gradient_dtype, DType::kF16);
  EXPECT_NE(error_of(R"({"data_types": {"grad_accum_dtype": "fp8"}})").find("Got: fp8"), std::string::npos);
  const RunConfig config = with(R"({"data_types": {"grad_accum_dtype": "bf16"}})");
  EXPECT_TRUE(narrow_gradients(config, DType::kBF16));
  for (const DType run : {DType::kF32, DType::kF16}) {
    try {
      narrow_gradients(config, run);
      FAIL() << "taken beside " << name_of(run);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("gradients in bf16 do not fit a run in"), std::string::npos);
    }
  }
}

TEST(DeepSpeedKeys, StateOfSixteenBits) {
  const RunConfig all =
      with(R"({"bf16": {"bf16_master_weights_and_grads": true, "bf16_optimizer_states": true, "enabled": true}})");
  EXPECT_FALSE(all.master_weights);
  EXPECT_EQ(all.gradient_dtype, DType::kBF16);
  EXPECT_EQ(all.optimizer_states, DType::kBF16);
  const RunConfig weights = with(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}})");
  EXPECT_EQ(weights.optimizer_states, DType::kF32);
  for (const char* json : {R"({"bf16": {"enabled": false, "bf16_master_weights_and_grads": true}})",
                           R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": false}})"}) {
    EXPECT_TRUE(with(json).master_weights) << json;
    EXPECT_EQ(with(json).gradient_dtype, DType::kF32) << json;
  }
}

TEST(DeepSpeedKeys, OptimizersAndTheirDecay) {
  EXPECT_EQ(with(R"({"optimizer": {"type": "Adam", "params": {}}})").optim, OptimizerName::kAdamW);
  EXPECT_EQ(with(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})").optim, OptimizerName::kAdam);
  EXPECT_EQ(with(R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})").optim, OptimizerName::kAdamW);
  EXPECT_EQ(with(R"({"optimizer": {"type": "Lion", "params": {"lr": "1e-4"}}})").learning_rate, 1e-4);
  EXPECT_FALSE(with(R"({"optimizer": {"type": "AdamW", "params": {"weight_decay": "auto"}}})").decay_bias_norm);
}

TEST(DeepSpeedKeys, ZeroInEverySpelling) {
  EXPECT_EQ(with(R"({"zero_optimization": true})").zero_stage, 1);
  EXPECT_EQ(with(R"({"zero_optimization": false})").zero_stage, 0);
  EXPECT_EQ(with(R"({"zero_optimization": {"stage": 2, "cpu_offload": true}})").offload_optimizer, OffloadDevice::kCpu);
  EXPECT_EQ(with(R"({"zero_optimization": {"stage": 3, "max_live_parameters": 5e8}})").stage3_max_live_parameters,
            500'000'000);
  EXPECT_EQ(with(R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}})").reduce_bucket_size,
            500'000'000);
}

TEST(DeepSpeedMerge, TheConfigurationCountsMoreAndSaysSo) {
  const RunConfig config =
      with(R"({"optimizer": {"type": "AdamW", "params": {"lr": 2e-5}}, "gradient_clipping": "auto"})",
           "\"learning_rate\": 1e-3, \"max_grad_norm\": 0.5");
  EXPECT_DOUBLE_EQ(config.learning_rate, 2e-5);
  EXPECT_DOUBLE_EQ(config.max_grad_norm, 0.5);
  EXPECT_TRUE(warnings_contain(config, "`optimizer.params.lr`"));
  EXPECT_FALSE(notes_contain(config, "has no gradient_clipping"));
  // A default is no contradiction, and the same value neither.
  EXPECT_TRUE(with(R"({"optimizer": {"type": "AdamW", "params": {"weight_decay": 0.01}}})").warnings.empty());
  EXPECT_TRUE(with(R"({"gradient_clipping": 0.5})", "\"max_grad_norm\": 0.5").warnings.empty());
  EXPECT_TRUE(with(R"({"train_batch_size": 8})", "\"train_batch_size\": null").warnings.empty());
  const std::string strict = error_of(R"({"gradient_clipping": 2})", "\"max_grad_norm\": 0.5, \"strict_ds\": true");
  EXPECT_NE(
      strict.find("Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n- ds "
                  "gradient_clipping=2"),
      std::string::npos)
      << strict;
}

TEST(DeepSpeedMerge, TheSchedulesParametersCountMoreAndSaySo) {
  const std::string schedule =
      R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-4, "warmup_num_steps": 1000}}})";
  const RunConfig config = with(schedule, "\"learning_rate\": 1e-3, \"warmup_steps\": 10");
  EXPECT_TRUE(warnings_contain(config, "ds scheduler.params.warmup_num_steps=1000 vs hf warmup_steps=10"));
  EXPECT_TRUE(warnings_contain(config, "ds scheduler.params.warmup_max_lr=1e-4 vs hf learning_rate=1e-3"));
  EXPECT_TRUE(with(schedule, "\"learning_rate\": 1e-4, \"warmup_steps\": 1000").warnings.empty());
  EXPECT_TRUE(with(schedule, "\"warmup_steps\": 0").warnings.empty());
  const std::string by_itself = R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}})";
  EXPECT_TRUE(with(by_itself, "\"warmup_steps\": 10").warnings.empty());
  EXPECT_NE(error_of(schedule, "\"warmup_steps\": 10, \"strict_ds\": true").find("vs hf warmup_steps=10"),
            std::string::npos);
}

TEST(DeepSpeedMerge, WhatTheUserSaysOfBiasesCounts) {
  const std::string json = R"({"optimizer": {"type": "AdamW", "params": {"weight_decay": 0.01}}})";
  EXPECT_TRUE(with(json).decay_bias_norm);
  EXPECT_FALSE(with(json, "\"decay_bias_norm\": false").decay_bias_norm);
}

TEST(DeepSpeedMerge, AutoTakesTheRunsValuesAndDefaults) {
  // The micro-batch is TrainingArguments' 8, not what would fill the global batch.
  RunConfig config = with(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto"})");
  resolve_batch(config, 1);
  EXPECT_EQ(config.per_device_train_batch_size, 8);
  EXPECT_EQ(config.gradient_accumulation_steps, 8);
  const RunConfig warm = with(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}})");
  ScheduleSettings settings;
  settings.type = warm.lr_scheduler_type;
  settings.parameters = warm.lr_scheduler_kwargs;
  settings.learning_rate = 1;
  settings.total_steps = 100;
  EXPECT_DOUBLE_EQ(make_schedule(settings).at(2), 1) << "no warm-up: the shortest, not DeepSpeed's default of 1000";
  settings.warmup_steps = 50;
  EXPECT_LT(make_schedule(settings).at(2), 0.5);
}

TEST(DeepSpeedMerge, StrictComparesWithDefaultsAsHuggingFaceDoes) {
  const std::string strict =
      error_of(R"({"optimizer": {"type": "AdamW", "params": {"weight_decay": 0.01}}})", "\"strict_ds\": true");
  EXPECT_NE(strict.find("- ds optimizer.params.weight_decay=0.01 vs hf weight_decay=0"), std::string::npos) << strict;
}

TEST(DeepSpeedKeys, ContradictionsAndSlipsInSections) {
  EXPECT_NE(error_of(R"({"wandb": {"enabeld": true}})").find("did you mean 'enabled'?"), std::string::npos);
  EXPECT_NE(error_of(R"({"zero_optimization": {"stage": 2, "allgather_bucket_size": 5}})").find("must be even"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"zero_optimization": {"cpu_offload": true, "offload_optimizer": {"device": "cpu"}}})")
                .find("Cannot provide deprecated parameter"),
            std::string::npos);
  EXPECT_FALSE(
      notes_contain(with(R"({"curriculum_learning": {"enabled": false, "min_difficulty": 1}})"), "min_difficulty"));
}

TEST(DeepSpeedMerge, PrecisionWinsOverDtype) {
  const RunConfig config = with(R"({"fp16": {"enabled": true}, "bf16": {"enabled": false}})", "\"dtype\": \"bf16\"");
  EXPECT_EQ(config.dtype, DType::kF16);
  EXPECT_FALSE(config.warnings.empty());
  EXPECT_NE(error_of(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})")
                .find("bfloat16 and fp16 modes cannot be simultaneously enabled"),
            std::string::npos);
  EXPECT_EQ(with(R"({"bfloat16": {"enabled": true}})").dtype, DType::kBF16);
}

TEST(DeepSpeedMerge, BatchesAsDeepSpeedInfersThem) {
  const auto resolved = [](const std::string& json, int ranks, const std::string& more = "") {
    RunConfig config = with(json, more);
    resolve_batch(config, ranks);
    return std::pair(config.per_device_train_batch_size, config.gradient_accumulation_steps);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(resolved(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4})", 2), Pair(4, 4));
  EXPECT_EQ(resolved(R"({"train_batch_size": 32, "gradient_accumulation_steps": 4})", 2), Pair(4, 4));
  EXPECT_EQ(resolved(R"({"train_batch_size": 32})", 4), Pair(8, 1));
  EXPECT_EQ(resolved(R"({"train_micro_batch_size_per_gpu": 4})", 4), Pair(4, 1));
  EXPECT_EQ(resolved(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"})", 4,
                     "\"per_device_train_batch_size\": 3, \"gradient_accumulation_steps\": 5"),
            Pair(3, 5));
  RunConfig config = with(R"({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4})");
  try {
    resolve_batch(config, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("30 != 4 * 1 * 4"), std::string::npos) << error.what();
  }
}

TEST(DeepSpeedJson, ReadsWhatHjsonReads) {
  const ConfigNode root = parse_deepspeed_json(R"(
# a comment
{
  // another
  stage: 2, /* and
  one more */ "name": "a\u00e9\n", 'single': 'x',
  list: [1, 2
         3,],
  nested: {deep: {}}
  word: some text
  last: 5e8,
}
)",
                                               "ds.json");
  ASSERT_EQ(root.entries.size(), 7u);
  EXPECT_EQ(root.entries[0].value.text, "2");
  EXPECT_EQ(root.entries[0].value.line, 5);
  EXPECT_EQ(root.entries[1].value.text, "a\u00e9\n");
  EXPECT_EQ(root.entries[3].value.items.size(), 3u);
  EXPECT_EQ(root.entries[5].value.text, "some text");
  EXPECT_EQ(root.entries[6].value.text, "5e8");
  EXPECT_EQ(parse_deepspeed_json("a: 1\nb: 2", "x").entries.size(), 2u);
}

TEST(DeepSpeedJson, ErrorsNameTheLine) {
  const auto error = [](const std::string& text) -> std::string {
    try {
      parse_deepspeed_json(text, "ds.json");
    } catch (const Error& failure) {
      return failure.what();
    }
    return "no error";
  };
  EXPECT_NE(error("{\n\"a\" 1}").find("ds.json:2"), std::string::npos) << error("{\n\"a\" 1}");
  EXPECT_NE(error("{\"a\": 1").find("does not end"), std::string::npos);
  EXPECT_NE(error("{\"a\": \"x").find("does not end"), std::string::npos);
  EXPECT_NE(error("{\"a\": /* x").find("comment"), std::string::npos);
  EXPECT_NE(error("{} {}").find("after the end"), std::string::npos);
  EXPECT_NE(error(R"({"a": 1, "b": {"c": 1, "c": 2}, "a": 3})").find("Duplicate keys in DeepSpeed config: ['c', 'a']"),
            std::string::npos);
  EXPECT_NE(error(std::string(100000, '[')).find("'['"), std::string::npos) << error(std::string(10, '['));
  EXPECT_NE(error("{\"a\": " + std::string(100000, '[')).find("nested"), std::string::npos);
}

TEST(DeepSpeedJson, TakesPathsTextAndBase64) {
  EXPECT_EQ(parse_run_config({"--deepspeed", R"({"zero_optimization": {"stage": 2}})"}).zero_stage, 2);
  // {"zero_optimization": {"stage": 3}}
  EXPECT_EQ(parse_run_config({"--deepspeed", "eyJ6ZXJvX29wdGltaXphdGlvbiI6IHsic3RhZ2UiOiAzfX0="}).zero_stage, 3);
  try {
    parse_run_config({"--deepspeed", "no/such/file.json"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Expected a string path to an existing deepspeed config"),
              std::string::npos);
  }
}

TEST(DeepSpeedJson, TextOnTheCommandLineMayBeLenientToo) {
  EXPECT_EQ(parse_run_config({"--deepspeed", "{zero_optimization: {stage: 2,} /* x */}"}).zero_stage, 2);
  EXPECT_NE(error_of(R"({"steps\_p": 1})"), "no error") << "no JSON escape";
}

TEST(DeepSpeedJson, UnknownKeysSayWhatIsNear) {
  const RunConfig misspelt = with(R"({"gradient_cliping": 1, "my_own_notes": 1})");
  ASSERT_EQ(misspelt.warnings.size(), 1u);
  EXPECT_NE(misspelt.warnings[0].find("did you mean 'gradient_clipping'?"), std::string::npos) << misspelt.warnings[0];
  EXPECT_TRUE(notes_contain(misspelt, "my_own_notes"));
  const std::string error = error_of(R"({"zero_optimization": {"stge": 2}})");
  EXPECT_NE(error.find("unknown key 'stge', did you mean 'stage'?"), std::string::npos) << error;
}

TEST(DeepSpeedReference, TheDocumentHasTheTable) {
  const std::string path = std::string(CONVOY_SOURCE_DIR) + "/docs/deepspeed.md";
  const std::string begin = "<!-- the table is made from src/config/deepspeed_keys.cpp -->\n";
  std::string text = read_file(path);
  const std::size_t at = text.find(begin);
  ASSERT_NE(at, std::string::npos);
  if (std::getenv("CONVOY_WRITE_REFERENCE") != nullptr) {
    text.resize(at + begin.size());
    std::ofstream(path) << text << deepspeed_reference();
    text += deepspeed_reference();
  }
  EXPECT_EQ(text.substr(at + begin.size()), deepspeed_reference());
}

}  // namespace
}  // namespace convoy
