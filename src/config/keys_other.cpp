// TrainingArguments that have no effect here, with the reason, and those that are refused, with what to do instead.
#include "config/key_registry.h"

namespace convoy {
namespace {

void none(Section& section, const std::vector<std::string>& names, const std::string& why) {
  for (const std::string& name : names) section.none(name, why);
}
void none_flags(Section& section, const std::vector<std::string>& names, const std::string& why) {
  for (const std::string& name : names) section.none(name, why).as(Key::Kind::kBool);
}
void refused(Section& section, const std::vector<std::string>& names, const std::string& remedy) {
  for (const std::string& name : names) section.refused(name, remedy);
}

void refused_flag(Section& section, const std::string& name, const std::string& remedy) {
  section.refused(name, remedy).as(Key::Kind::kBool);
}

Section accepted_keys() {
  Section s{"Accepted without effect", {}};
  none_flags(s, {"do_train", "do_eval", "do_predict"}, "the command and eval_strategy say what is done");
  const std::string pytorch = "it chooses among PyTorch's implementations; Convoy is a native program";
  none(s,
       {"fp16_opt_level", "half_precision_backend", "fp16_backend", "torchdynamo", "torch_compile_backend",
        "torch_compile_mode", "liger_kernel_config", "torch_empty_cache_steps", "ddp_backend"},
       pytorch);
  none_flags(s, {"jit_mode_eval", "use_ipex", "torch_compile", "use_liger_kernel"}, pytorch);
  none_flags(s, {"bf16_full_eval", "fp16_full_eval"}, "evaluation computes in the run's dtype");
  none(s, {"gradient_checkpointing_kwargs"}, "recomputation has one implementation here");
  none_flags(s, {"use_cache"}, "training keeps no cache of past keys and values");
  none(s, {"past_index"}, "training keeps no cache of past keys and values");
  none_flags(s, {"average_tokens_across_devices"}, "loss_average says how the loss is averaged");
  none_flags(s, {"include_tokens_per_second"}, "tokens per second are always shown");
  none(s, {"log_level_replica"}, "only the first rank logs");
  none_flags(s, {"log_on_each_node"}, "only the first rank logs");
  none(s, {"project", "trackio_space_id"}, "logs stay on this machine");
  const std::string metrics = "metrics are summed while evaluating; logits are never kept";
  none(s, {"eval_accumulation_steps", "include_for_metrics"}, metrics);
  none_flags(s,
             {"batch_eval_metrics", "prediction_loss_only", "include_inputs_for_metrics", "eval_do_concat_batches",
              "eval_use_gather_object", "use_legacy_prediction_loop"},
             metrics);
  none_flags(s, {"save_safetensors"}, "weights are always safetensors");
  none_flags(s, {"save_on_each_node"}, "a checkpoint is written once");
  none_flags(s, {"enable_jit_checkpoint"}, "a signal ends the run after a checkpoint anyway");
  none_flags(s, {"restore_callback_states_from_checkpoint"},
             "early stopping and the schedule always go on where they were");
  const std::string reading = "data is read and tokenized by threads of the run itself";
  none(s, {"dataloader_num_workers", "dataloader_prefetch_factor"}, reading);
  none_flags(s, {"dataloader_pin_memory", "dataloader_persistent_workers"}, reading);
  const std::string fields = "only the fields that the model needs are read";
  none_flags(s, {"remove_unused_columns"}, fields);
  none(s, {"label_names", "length_column_name"}, fields);
  const std::string order = "the data order depends on the seed alone, never on ranks";
  none(s, {"accelerator_config", "parallelism_config"}, order);
  none_flags(s, {"split_batches", "dispatch_batches"}, order);
  none(s, {"ddp_bucket_cap_mb"}, "gradients are summed by a fixed plan");
  none_flags(s, {"ddp_find_unused_parameters", "ddp_broadcast_buffers", "ddp_static_graph"},
             "gradients are summed by a fixed plan");
  none(s, {"ddp_timeout"}, "timeout says how long a rank without progress is waited for");
  none(s, {"local_rank"}, "the environment says which rank a process is");
  none_flags(s, {"no_cuda", "use_cpu"}, "device says where the run computes");
  const std::string machines = "such machines are not supported; device says where the run computes";
  none(s, {"tpu_num_cores", "xpu_backend", "mp_parameters", "ray_scope"}, machines);
  none_flags(s, {"tpu_metrics_debug", "use_mps_device"}, machines);
  none_flags(s, {"skip_memory_metrics"}, "memory is planned exactly and always reported");
  none(s, {"debug"}, "losses and gradients that are not finite are always reported");
  none(s, {"fsdp_config", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap"},
       "it belongs to fsdp, which is not used");
  const std::string hub = "nothing is uploaded";
  none(s,
       {"hub_model_id", "hub_strategy", "hub_token", "hub_revision", "push_to_hub_model_id", "push_to_hub_organization",
        "push_to_hub_token"},
       hub);
  none_flags(s, {"hub_private_repo", "hub_always_push"}, hub);
  return s;
}

Section refused_keys() {
  Section s{"Not supported", {}};
  refused(s, {"fsdp", "sharded_ddp"}, "use zero_stage: 3 for full_shard, 2 for shard_grad_op");
  refused_flag(s, "adafactor", "use optim: adamw, or lion, whose state is half as large");
  refused(s, {"optim_target_modules"}, "it belongs to optimizers that are not supported; use optim: adamw");
  refused(s, {"neftune_noise_alpha"}, "noise on embeddings is not supported; leave it out");
  refused_flag(s, "group_by_length", "use packing: pack; rows are full then, whatever the lengths");
  refused_flag(s, "auto_find_batch_size",
               "the memory plan says before the first step what fits; set per_device_train_batch_size and "
               "gradient_accumulation_steps");
  refused(s, {"optim_args"}, "give momentum, dampening, nesterov, adam_beta1, … as keys of their own");
  refused_flag(s, "push_to_hub", "nothing is uploaded; push the folder in output_dir yourself");
  return s;
}

}  // namespace

std::vector<Section> other_sections() {
  return {accepted_keys(), refused_keys()};
}

}  // namespace convoy
