#include "config/deepspeed_keys.h"

#include <fmt/format.h>

namespace convoy {
namespace {

using enum DeepSpeedKey::Verdict;

constexpr const char* kAlways = "always so here";
constexpr const char* kTuning = "it tunes DeepSpeed's own implementation";
constexpr const char* kOrder = "the order of communication is planned before the run";
constexpr const char* kNvme = "nothing is swapped to disks here";
constexpr const char* kMaths = "it changes what is computed and is not there; switch it off";
constexpr const char* kProfile = "convoy plan counts the arithmetic, wall_clock_breakdown the time";
constexpr const char* kMonitor = "log_file has every log as JSON";

}  // namespace

const std::vector<DeepSpeedKey>& deepspeed_keys() {
  static const std::vector<DeepSpeedKey> keys = {
      // Batches
      {"train_batch_size", kKey, "train_batch_size", "Sequences per optimizer step.", "32"},
      {"train_micro_batch_size_per_gpu", kKey, "per_device_train_batch_size", "Sequences per micro-batch and rank.",
       "4"},
      {"gradient_accumulation_steps", kKey, "gradient_accumulation_steps", "Micro-batches per step and rank.", "2"},
      // General
      {"gradient_clipping", kKey, "max_grad_norm",
       "Limit of the gradient norm. Where it is absent, max_grad_norm holds.", "1.0"},
      {"steps_per_print", kKey, "steps_per_print", "Steps between DeepSpeed's lines.", "10"},
      {"wall_clock_breakdown", kKey, "wall_clock_breakdown", "Print where the time goes.", "true"},
      {"dataloader_drop_last", kKey, "dataloader_drop_last", "Leave out an incomplete last step.", "true"},
      {"prescale_gradients", kNoted, "", "gradients are divided by the number of targets before they are summed",
       "true"},
      {"gradient_predivide_factor", kNoted, "",
       "gradients are summed in float32, where the order of dividing and summing does not matter", "2.0"},
      {"gradient_allreduce_op", kHandled, "", "mean. sum is refused.", "\"mean\""},
      {"communication_data_type", kHandled, "gradient_compression", "fp32, fp16 or bf16.", "\"bf16\""},
      {"seq_parallel_communication_data_type", kNoted, "", "there is no sequence parallelism yet", "\"fp32\""},
      {"sequence_parallel_size", kHandled, "", "1. More is refused: there is no sequence parallelism yet.", "1"},
      {"sparse_gradients", kNoted, "", "gradients are exchanged dense, with the same result", "true"},
      {"disable_allgather", kNoted, "", "a setting of old DeepSpeed versions", "true"},
      {"memory_breakdown", kNoted, "", "convoy plan says every byte before the run", "true"},
      {"dump_state", kNoted, "", "resolved.yaml in output_dir has every setting", "true"},
      {"zero_allow_untested_optimizer", kNoted, "", "every optimizer here may be sharded", "true"},
      {"zero_force_ds_cpu_optimizer", kNoted, "", "there is one implementation of each optimizer", "false"},
      {"vocabulary_size", kNoted, "", "the model's configuration says it", "32000"},
      {"data_types.grad_accum_dtype", kHandled, "gradient_dtype",
       "fp32 (also where it is left out), or the dtype of the run. Gradients of biases, norms and embeddings stay "
       "fp32.",
       "\"fp32\""},
      {"data_types.param_dtype", kNoted, "", "fp16 and bf16 say it", "\"fp32\""},
      {"data_types.buffer_dtype", kNoted, "", "fp16 and bf16 say it", "\"fp32\""},
      {"amp.enabled", kRefused, "", "use fp16 or bf16", "true"},
      {"amp.*", kNoted, "", "it belongs to amp", "\"O1\""},
      {"torch_autocast.enabled", kRefused, "", "use bf16: its master weights are float32", "true"},
      {"torch_autocast.*", kNoted, "", "it belongs to torch_autocast", "\"bfloat16\""},
      {"timers.*", kNoted, "", "tokens per second are always shown", "{}"},
      {"compile.*", kNoted, "", "the program is compiled before the run", "true"},
      {"graph_harvesting", kNoted, "", kTuning, "true"},
      {"hybrid_engine.*", kNoted, "", "it is for reinforcement learning", "false"},
      {"nebula.*", kNoted, "", "checkpoints are written beside training (async_save)", "false"},
      {"log_level", kNoted, "", "log_level of the run file says it", "\"warning\""},
      {"managed_gradient_accumulation", kNoted, "", kAlways, "true"},
      {"background_streaming", kNoted, "", "DeepSpeed has no such key", "false"},
      {"sparse_attention", kRefused, "", kMaths, "{\"mode\": \"fixed\"}"},
      {"compression_training", kRefused, "", kMaths, "{\"weight_quantization\": {}}"},
      {"quantize_training.enabled", kRefused, "", kMaths, "true"},
      {"quantize_training.*", kNoted, "", "it belongs to quantize_training", "8"},
      {"progressive_layer_drop.enabled", kRefused, "", kMaths, "true"},
      {"progressive_layer_drop.*", kNoted, "", "it belongs to progressive_layer_drop", "0.5"},
      {"eigenvalue.enabled", kRefused, "", kMaths, "true"},
      {"eigenvalue.*", kNoted, "", "it belongs to eigenvalue", "2"},
      {"curriculum_learning.enabled", kRefused, "", kMaths, "true"},
      {"curriculum_learning.*", kNoted, "", "it belongs to curriculum_learning", "1"},
      {"data_efficiency.enabled", kRefused, "", kMaths, "true"},
      {"data_efficiency.*", kNoted, "", "it belongs to data_efficiency", "1"},
      {"tensor_parallel.autotp_size", kHandled, "", "0 or 1. More is refused: there is no tensor parallelism yet.",
       "1"},
      {"tensor_parallel.*", kNoted, "", "there is no tensor parallelism yet", "1"},
      {"aio.*", kNoted, "", kNvme, "8"},
      {"base_seed", kNoted, "", "seed says it", "1234"},
      // Precision
      {"fp16.enabled", kKey, "fp16", "Train in float16 with float32 master weights and loss scaling.", "true"},
      {"fp16.loss_scale", kKey, "loss_scale", "0: dynamic; else the constant scale.", "128"},
      {"fp16.initial_scale_power", kKey, "initial_scale_power", "The dynamic scale starts at 2 to this power.", "12"},
      {"fp16.loss_scale_window", kKey, "loss_scale_window", "Clean steps before the scale doubles.", "500"},
      {"fp16.hysteresis", kKey, "hysteresis", "Overflows before the scale halves.", "4"},
      {"fp16.consecutive_hysteresis", kKey, "consecutive_hysteresis", "Each clean step refills hysteresis.", "true"},
      {"fp16.min_loss_scale", kKey, "min_loss_scale", "The smallest scale.", "2"},
      {"fp16.auto_cast", kNoted, "", "models take token ids, which need no cast", "true"},
      {"fp16.fp16_master_weights_and_grads", kRefused, "", "leave it out: master weights are float32", "true"},
      {"bf16.enabled", kKey, "bf16", "Train in bfloat16 with float32 master weights.", "true"},
      {"bf16.check_grad_overflow", kNoted, "", "gradients that are not finite always skip the step", "false"},
      {"bf16.immediate_grad_update", kNoted, "", kTuning, "true"},
      {"bf16.bf16_master_weights_and_grads", kHandled, "",
       "`master_weights: false` and `gradient_dtype: bf16`; weights are rounded stochastically.", "true"},
      {"bf16.bf16_optimizer_states", kHandled, "", "`optimizer_states: bf16`, rounded stochastically.", "true"},
      // Optimizer and schedule
      {"optimizer.type", kHandled, "optim", "Adam (decoupled decay, as DeepSpeed's), AdamW, SGD, Lion, Adagrad.",
       "\"AdamW\""},
      {"optimizer.params.lr", kKey, "learning_rate", "The learning rate.", "0.0001"},
      {"optimizer.params.betas", kHandled, "adam_beta1, adam_beta2", "The two decays.", "[0.9, 0.95]"},
      {"optimizer.params.eps", kKey, "adam_epsilon", "Added to the root of the second moment.", "1e-8"},
      {"optimizer.params.weight_decay", kHandled, "weight_decay, decay_bias_norm",
       "A number decays every weight, biases and norms too, as DeepSpeed does; \"auto\" leaves the run file's rule.",
       "0.01"},
      {"optimizer.params.momentum", kKey, "momentum", "sgd: momentum.", "0.9"},
      {"optimizer.params.dampening", kKey, "dampening", "sgd: dampening.", "0.1"},
      {"optimizer.params.nesterov", kKey, "nesterov", "sgd: Nesterov momentum.", "false"},
      {"optimizer.params.adam_w_mode", kHandled, "optim", "false with type Adam: decay through the gradient (L2).",
       "true"},
      {"optimizer.params.bias_correction", kHandled, "", "true. false is refused.", "true"},
      {"optimizer.params.amsgrad", kRefused, "", "DeepSpeed's Adam has no amsgrad either; leave it out", "true"},
      {"optimizer.params.max_grad_norm", kRefused, "",
       "it is not supported as an optimizer parameter; please switch to using the deepspeed parameter "
       "'gradient_clipping'",
       "1.0"},
      {"optimizer.params.torch_adam", kNoted, "", "there is one implementation of each optimizer", "true"},
      {"optimizer.params.fused", kNoted, "", "there is one implementation of each optimizer", "true"},
      {"optimizer.params.foreach", kNoted, "", "there is one implementation of each optimizer", "true"},
      {"optimizer.params.set_grad_none", kNoted, "", kTuning, "true"},
      {"optimizer.params.fp32_optimizer_states", kNoted, "", kAlways, "true"},
      {"optimizer.legacy_fusion", kNoted, "", kTuning, "false"},
      {"scheduler.type", kKey, "lr_scheduler_type", "DeepSpeed's schedules, or Hugging Face's names.", "\"WarmupLR\""},
      {"scheduler.params", kHandled, "lr_scheduler_kwargs",
       "The schedule's parameters; \"auto\" as Hugging Face fills it.", "{\"warmup_num_steps\": 100}"},
      // ZeRO
      {"zero_optimization.stage", kKey, "zero_stage", "What is sharded.", "2"},
      {"zero_optimization.reduce_bucket_size", kKey, "reduce_bucket_size", "Most elements of a gradient bucket.",
       "2e8"},
      {"zero_optimization.allgather_bucket_size", kKey, "allgather_bucket_size", "Most elements of a gathered bucket.",
       "2e8"},
      {"zero_optimization.overlap_comm", kKey, "overlap_comm", "Communicate beside the computation.", "false"},
      {"zero_optimization.stage3_prefetch_bucket_size", kKey, "stage3_prefetch_bucket_size",
       "Most elements gathered ahead.", "5e8"},
      {"zero_optimization.stage3_param_persistence_threshold", kKey, "stage3_param_persistence_threshold",
       "Smaller weights stay whole.", "1e6"},
      {"zero_optimization.stage3_max_live_parameters", kKey, "stage3_max_live_parameters",
       "Most elements kept for another use.", "1e9"},
      {"zero_optimization.stage3_max_reuse_distance", kKey, "stage3_max_reuse_distance",
       "How near another use must be for a weight to be kept.", "1e9"},
      {"zero_optimization.offload_optimizer.device", kKey, "offload_optimizer", "Where the optimizer's state lives.",
       "\"cpu\""},
      {"zero_optimization.offload_optimizer.ratio", kHandled, "", "1. Less is refused: all or nothing is offloaded.",
       "1.0"},
      {"zero_optimization.offload_optimizer.pin_memory", kNoted, "", "host buffers are pinned where a device copies",
       "true"},
      {"zero_optimization.offload_optimizer.nvme_path", kNoted, "", kNvme, "4"},
      {"zero_optimization.offload_optimizer.buffer_count", kNoted, "", kNvme, "4"},
      {"zero_optimization.offload_optimizer.fast_init", kNoted, "", kNvme, "4"},
      {"zero_optimization.offload_optimizer.pipeline_read", kNoted, "", kNvme, "4"},
      {"zero_optimization.offload_optimizer.pipeline_write", kNoted, "", kNvme, "4"},
      {"zero_optimization.offload_optimizer.pipeline", kNoted, "", kNvme, "4"},
      {"zero_optimization.offload_optimizer.super_offload", kNoted, "", kNvme, "4"},
      {"zero_optimization.offload_optimizer.cpuadam_cores_perc", kNoted, "", kNvme, "4"},
      {"zero_optimization.offload_param.device", kKey, "offload_param", "Where weights live between uses.", "\"cpu\""},
      {"zero_optimization.offload_param.pin_memory", kNoted, "", "host buffers are pinned where a device copies",
       "true"},
      {"zero_optimization.offload_param.nvme_path", kNoted, "", kNvme, "5"},
      {"zero_optimization.offload_param.buffer_count", kNoted, "", kNvme, "5"},
      {"zero_optimization.offload_param.buffer_size", kNoted, "", kNvme, "5"},
      {"zero_optimization.offload_param.max_in_cpu", kNoted, "", kNvme, "5"},
      {"zero_optimization.cpu_offload", kHandled, "offload_optimizer", "Old name of offload_optimizer.device: cpu.",
       "true"},
      {"zero_optimization.cpu_offload_params", kHandled, "offload_param", "Old name of offload_param.device: cpu.",
       "true"},
      {"zero_optimization.cpu_offload_param", kHandled, "offload_param", "Old name of offload_param.device: cpu.",
       "true"},
      {"zero_optimization.cpu_offload_use_pin_memory", kNoted, "", "host buffers are pinned where a device copies",
       "true"},
      {"zero_optimization.contiguous_gradients", kNoted, "", kAlways, "true"},
      {"zero_optimization.reduce_scatter", kNoted, "", "the sums are the same either way", "true"},
      {"zero_optimization.allgather_partitions", kNoted, "", kAlways, "true"},
      {"zero_optimization.use_multi_rank_bucket_allreduce", kNoted, "", kOrder, "true"},
      {"zero_optimization.round_robin_gradients", kNoted, "", kOrder, "true"},
      {"zero_optimization.ignore_unused_parameters", kNoted, "", "a weight that nothing uses has a gradient of zeros",
       "true"},
      {"zero_optimization.load_from_fp32_weights", kNoted, "", "master weights are restored from their own file",
       "true"},
      {"zero_optimization.elastic_checkpoint", kNoted, "", "a checkpoint resumes on any number of ranks", "true"},
      {"zero_optimization.legacy_stage1", kRefused, "", "leave it out", "true"},
      {"zero_optimization.sub_group_size", kNoted, "", "the update needs no memory beside its arenas", "1e12"},
      {"zero_optimization.stage3_model_persistence_threshold", kNoted, "",
       "stage3_param_persistence_threshold alone says what stays whole", "1e10"},
      {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kNoted, "", "saved models are always whole",
       "true"},
      {"zero_optimization.stage3_gather_fp16_weights_on_model_save", kNoted, "", "saved models are always whole",
       "true"},
      {"zero_optimization.stage3_module_granularity_threshold", kNoted, "", kTuning, "0"},
      {"zero_optimization.stage3_use_all_reduce_for_fetch_params", kNoted, "", kOrder, "true"},
      {"zero_optimization.stage3_allgather_sequential", kNoted, "", kOrder, "true"},
      {"zero_optimization.memory_efficient_linear", kNoted, "", kTuning, "true"},
      {"zero_optimization.pipeline_loading_checkpoint", kNoted, "", "weights are read shard by shard", "true"},
      {"zero_optimization.override_module_apply", kNoted, "", kTuning, "true"},
      {"zero_optimization.log_trace_cache_warnings", kNoted, "", kTuning, "true"},
      {"zero_optimization.enable_sanity_checks", kNoted, "", kAlways, "true"},
      {"zero_optimization.leaf_module", kNoted, "", kTuning, "{}"},
      {"zero_optimization.zero_hpz_partition_size", kNoted, "", "weights are sharded over all ranks", "8"},
      {"zero_optimization.zero_quantized_weights", kRefused, "", "leave it out: weights are gathered as they are",
       "true"},
      {"zero_optimization.zero_quantized_gradients", kRefused, "", "leave it out: gradients are summed in float32",
       "true"},
      {"zero_optimization.zero_quantized_nontrainable_weights", kRefused, "", "leave it out", "true"},
      {"zero_optimization.zeropp_loco_param", kNoted, "", "it belongs to zero_quantized_gradients", "{}"},
      {"zero_optimization.mics_shard_size", kNoted, "", "weights are sharded over all ranks", "4"},
      {"zero_optimization.mics_hierarchical_params_gather", kNoted, "", "weights are sharded over all ranks", "true"},
      {"zero_optimization.zenflow", kRefused, "", "leave it out", "{\"topk_ratio\": 0.1}"},
      {"zero_optimization.save_muon_momentum_buffer_in_memory", kNoted, "", kTuning, "true"},
      // Recompute, pipeline
      {"activation_checkpointing.partition_activations", kHandled, "recompute", "true: recompute full.", "true"},
      {"activation_checkpointing.cpu_checkpointing", kHandled, "offload_activations", "true: cpu, and recompute: full.",
       "true"},
      {"activation_checkpointing.contiguous_memory_optimization", kHandled, "recompute", "true: recompute full.",
       "true"},
      {"activation_checkpointing.number_checkpoints", kHandled, "recompute", "Any number: recompute full.", "4"},
      {"activation_checkpointing.synchronize_checkpoint_boundary", kNoted, "", kTuning, "true"},
      {"activation_checkpointing.profile", kNoted, "", kProfile, "true"},
      {"pipeline.stages", kHandled, "",
       "auto or 1, or beside ZeRO 2 and 3, where DeepSpeed has none either. More is refused: there is no pipeline "
       "parallelism yet.",
       "1"},
      {"pipeline.activation_checkpoint_interval", kHandled, "recompute", "Above 0: recompute full.", "1"},
      {"pipeline.seed_layers", kNoted, "", "weights are drawn from (seed, weight), never by rank", "true"},
      {"pipeline.*", kNoted, "", "there is no pipeline parallelism yet", "\"best\""},
      // Reports
      {"tensorboard.enabled", kHandled, "report_to", "true: report_to tensorboard.", "true"},
      {"tensorboard.output_path", kHandled, "logging_dir", "Folder of the events, with job_name under it.", "\"logs\""},
      {"tensorboard.job_name", kHandled, "logging_dir", "Subfolder of output_path.", "\"job\""},
      {"csv_monitor.enabled", kNoted, "", kMonitor, "true"},
      {"csv_monitor.output_path", kNoted, "", kMonitor, "true"},
      {"csv_monitor.job_name", kNoted, "", kMonitor, "true"},
      {"wandb.enabled", kNoted, "", kMonitor, "true"},
      {"wandb.group", kNoted, "", kMonitor, "true"},
      {"wandb.team", kNoted, "", kMonitor, "true"},
      {"wandb.project", kNoted, "", kMonitor, "true"},
      {"comet.enabled", kNoted, "", kMonitor, "true"},
      {"comet.samples_log_interval", kNoted, "", kMonitor, "true"},
      {"comet.project", kNoted, "", kMonitor, "true"},
      {"comet.workspace", kNoted, "", kMonitor, "true"},
      {"comet.api_key", kNoted, "", kMonitor, "true"},
      {"comet.experiment_name", kNoted, "", kMonitor, "true"},
      {"comet.experiment_key", kNoted, "", kMonitor, "true"},
      {"comet.online", kNoted, "", kMonitor, "true"},
      {"comet.mode", kNoted, "", kMonitor, "true"},
      {"flops_profiler.*", kNoted, "", kProfile, "true"},
      {"comms_logger.enabled", kNoted, "", "trace shows every operation", "true"},
      {"comms_logger.verbose", kNoted, "", "trace shows every operation", "true"},
      {"comms_logger.prof_all", kNoted, "", "trace shows every operation", "true"},
      {"comms_logger.debug", kNoted, "", "trace shows every operation", "true"},
      {"comms_logger.prof_ops", kNoted, "", "trace shows every operation", "true"},
      {"checkpoint.*", kNoted, "", "a checkpoint is whole or not there, and resumes on any number of ranks",
       "\"Warn\""},
      {"elasticity.enabled", kRefused, "", "use elastic: MIN:MAX of the run file, with train_batch_size", "true"},
      {"elasticity.*", kNoted, "", "it belongs to elasticity", "4"},
      {"autotuning.enabled", kRefused, "", "use convoy plan, which says what fits", "true"},
      {"autotuning.*", kNoted, "", "it belongs to autotuning", "true"},
  };
  return keys;
}

std::string deepspeed_reference() {
  std::string text = "| key | what becomes of it |\n|---|---|\n";
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    std::string what;
    switch (key.verdict) {
      case kKey:
        what = fmt::format("`{}`. {}", key.target, key.text);
        break;
      case kHandled:
        what = *key.target != 0 ? fmt::format("`{}`. {}", key.target, key.text) : std::string(key.text);
        break;
      case kNoted:
        what = fmt::format("no effect, noted: {}", key.text);
        break;
      case kRefused:
        what = fmt::format("**refused**: {}", key.text);
        break;
    }
    text += fmt::format("| `{}` | {} |\n", key.path, what);
  }
  return text;
}

}  // namespace convoy
