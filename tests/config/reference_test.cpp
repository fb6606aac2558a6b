#include <algorithm>
#include <cstdlib>

#include "base/files.h"
#include "config/key_registry.h"
#include "config_support.h"
#include "optim/schedule.h"

namespace convoy {
namespace {

// Set CONVOY_WRITE_REFERENCE=1 to write the page anew.
TEST(Reference, ThePageIsCurrent) {
  const std::string page = std::string(CONVOY_SOURCE_DIR) + "/docs/configuration.md";
  if (std::getenv("CONVOY_WRITE_REFERENCE") != nullptr) write_file_atomic(page, config_reference());
  EXPECT_EQ(read_file(page), config_reference()) << "run this test once with CONVOY_WRITE_REFERENCE=1";
}

TEST(Reference, HelpNamesEveryUsedKey) {
  const std::string help = config_help();
  for (const Section& section : key_sections()) {
    for (const Key& key : section.keys) {
      const bool used = key.effect == Key::Effect::kUsed;
      EXPECT_EQ(help.find("  --" + key.name) != std::string::npos, used) << key.name;
      EXPECT_FALSE(key.help.empty()) << key.name;
      if (!used) continue;
      EXPECT_TRUE(key.get && key.set) << key.name;
      const bool has_default = !std::holds_alternative<std::monostate>(key.get(RunConfig{}));
      EXPECT_TRUE(has_default || !key.unset.empty()) << key.name << " does not say what its absence means";
    }
  }
  EXPECT_NE(help.find("  --learning_rate  [5e-05]\n"), std::string::npos);
}

TEST(Reference, EveryTrainingArgumentIsKnown) {
  for (const char* name : {"output_dir",
                           "overwrite_output_dir",
                           "do_train",
                           "do_eval",
                           "do_predict",
                           "eval_strategy",
                           "evaluation_strategy",
                           "prediction_loss_only",
                           "per_device_train_batch_size",
                           "per_device_eval_batch_size",
                           "per_gpu_train_batch_size",
                           "per_gpu_eval_batch_size",
                           "gradient_accumulation_steps",
                           "eval_accumulation_steps",
                           "eval_delay",
                           "torch_empty_cache_steps",
                           "learning_rate",
                           "weight_decay",
                           "adam_beta1",
                           "adam_beta2",
                           "adam_epsilon",
                           "max_grad_norm",
                           "num_train_epochs",
                           "max_steps",
                           "lr_scheduler_type",
                           "lr_scheduler_kwargs",
                           "warmup_ratio",
                           "warmup_steps",
                           "log_level",
                           "log_level_replica",
                           "log_on_each_node",
                           "logging_dir",
                           "logging_strategy",
                           "logging_first_step",
                           "logging_steps",
                           "logging_nan_inf_filter",
                           "save_strategy",
                           "save_steps",
                           "save_total_limit",
                           "save_safetensors",
                           "save_on_each_node",
                           "save_only_model",
                           "enable_jit_checkpoint",
                           "restore_callback_states_from_checkpoint",
                           "no_cuda",
                           "use_cpu",
                           "use_mps_device",
                           "seed",
                           "data_seed",
                           "jit_mode_eval",
                           "use_ipex",
                           "bf16",
                           "fp16",
                           "fp16_opt_level",
                           "half_precision_backend",
                           "fp16_backend",
                           "bf16_full_eval",
                           "fp16_full_eval",
                           "tf32",
                           "local_rank",
                           "ddp_backend",
                           "tpu_num_cores",
                           "tpu_metrics_debug",
                           "debug",
                           "dataloader_drop_last",
                           "eval_steps",
                           "dataloader_num_workers",
                           "dataloader_prefetch_factor",
                           "past_index",
                           "run_name",
                           "disable_tqdm",
                           "remove_unused_columns",
                           "label_names",
                           "load_best_model_at_end",
                           "metric_for_best_model",
                           "greater_is_better",
                           "ignore_data_skip",
                           "fsdp",
                           "fsdp_min_num_params",
                           "fsdp_config",
                           "fsdp_transformer_layer_cls_to_wrap",
                           "accelerator_config",
                           "parallelism_config",
                           "deepspeed",
                           "label_smoothing_factor",
                           "optim",
                           "optim_args",
                           "optim_target_modules",
                           "adafactor",
                           "group_by_length",
                           "length_column_name",
                           "report_to",
                           "project",
                           "trackio_space_id",
                           "ddp_find_unused_parameters",
                           "ddp_bucket_cap_mb",
                           "ddp_broadcast_buffers",
                           "ddp_static_graph",
                           "ddp_timeout",
                           "dataloader_pin_memory",
                           "dataloader_persistent_workers",
                           "skip_memory_metrics",
                           "use_legacy_prediction_loop",
                           "push_to_hub",
                           "resume_from_checkpoint",
                           "hub_model_id",
                           "hub_strategy",
                           "hub_token",
                           "hub_private_repo",
                           "hub_always_push",
                           "hub_revision",
                           "gradient_checkpointing",
                           "gradient_checkpointing_kwargs",
                           "include_inputs_for_metrics",
                           "include_for_metrics",
                           "eval_do_concat_batches",
                           "push_to_hub_model_id",
                           "push_to_hub_organization",
                           "push_to_hub_token",
                           "mp_parameters",
                           "auto_find_batch_size",
                           "full_determinism",
                           "torchdynamo",
                           "ray_scope",
                           "torch_compile",
                           "torch_compile_backend",
                           "torch_compile_mode",
                           "dispatch_batches",
                           "split_batches",
                           "include_tokens_per_second",
                           "include_num_input_tokens_seen",
                           "neftune_noise_alpha",
                           "batch_eval_metrics",
                           "eval_on_start",
                           "use_liger_kernel",
                           "liger_kernel_config",
                           "eval_use_gather_object",
                           "average_tokens_across_devices",
                           "use_cache",
                           "train_sampling_strategy",
                           "sharded_ddp",
                           "xpu_backend"})
    EXPECT_NE(find_key(name), nullptr) << name;
}

TEST(Reference, ScheduleNamesAreThoseOfTheSchedules) {
  std::vector<std::string> names;
  for (const Key::Word& word : find_key("lr_scheduler_type")->words) names.push_back(word.text);
  std::vector<std::string> types = schedule_types();
  std::sort(names.begin(), names.end());
  std::sort(types.begin(), types.end());
  EXPECT_EQ(names, types);
}

}  // namespace
}  // namespace convoy
