// The keys of batches, optimizer, schedule, evaluation, checkpoints and logging; names as in TrainingArguments.
#include "config/key_registry.h"

namespace convoy {
namespace {

constexpr double kMaxCount = 1e15;

Section batch_keys() {
  Section s{"Batches and steps", {}};
  s.add("per_device_train_batch_size", &RunConfig::per_device_train_batch_size, "Sequences per micro-batch and rank.")
      .range(1, 1 << 24)
      .old("per_gpu_train_batch_size");
  s.add("per_device_eval_batch_size", &RunConfig::per_device_eval_batch_size,
        "Sequences per evaluation batch and rank.")
      .range(1, 1 << 24)
      .old("per_gpu_eval_batch_size");
  s.add("gradient_accumulation_steps", &RunConfig::gradient_accumulation_steps, "Micro-batches per optimizer step.")
      .range(1, 1 << 24);
  s.add("num_train_epochs", &RunConfig::num_train_epochs, "Passes over the training data; may be fractional.")
      .range(0, kMaxCount)
      .open_min();
  s.add("max_steps", &RunConfig::max_steps, "Optimizer steps; above 0 it replaces num_train_epochs.")
      .range(-1, kMaxCount);
  s.add("seed", &RunConfig::seed, "Of weights, dropout and data order.").range(0);
  s.add("data_seed", &RunConfig::data_seed, "Of the data order.").range(0).when_unset("seed");
  s.add_choice("loss_average", &RunConfig::loss_average, {"token", "micro_batch"},
               "The loss is the mean over all target tokens of the global batch, or DeepSpeed's mean of the "
               "micro-batches' means.");
  s.add("label_smoothing_factor", &RunConfig::label_smoothing_factor, "Share of the target spread over the vocabulary.")
      .range(0, 1)
      .open_max();
  s.add("z_loss", &RunConfig::z_loss, "Weight of log^2 Z, added to each target's loss.").range(0);
  return s;
}

Section optimizer_keys() {
  Section s{"Optimizer and schedule", {}};
  Key& optim = s.add_choice("optim", &RunConfig::optim, {"adamw", "adam", "sgd", "lion", "adagrad", "openai_adam"},
                            "The optimizer. adamw decays weights apart from the gradient, adam through it (L2), "
                            "openai_adam as finetune-transformer-lm does.");
  for (const char* name :
       {"adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_xla", "adamw_torch_npu_fused"})
    optim.word(name, 0);
  optim.word("lion_32bit", 3);
  const std::string full_state = "use optim: adamw, or lion, whose state is half as large";
  for (const char* name : {"adafactor",
                           "adamw_anyprecision",
                           "adamw_torch_4bit",
                           "adamw_torch_8bit",
                           "adamw_8bit",
                           "adamw_bnb_8bit",
                           "paged_adamw_32bit",
                           "paged_adamw_8bit",
                           "lion_8bit",
                           "paged_lion_32bit",
                           "paged_lion_8bit",
                           "ademamix",
                           "ademamix_8bit",
                           "paged_ademamix_32bit",
                           "paged_ademamix_8bit",
                           "rmsprop",
                           "rmsprop_bnb",
                           "rmsprop_bnb_8bit",
                           "rmsprop_bnb_32bit",
                           "galore_adamw",
                           "galore_adamw_8bit",
                           "galore_adafactor",
                           "galore_adamw_layerwise",
                           "galore_adamw_8bit_layerwise",
                           "galore_adafactor_layerwise",
                           "lomo",
                           "adalomo",
                           "grokadamw",
                           "schedule_free_radam",
                           "schedule_free_adamw",
                           "schedule_free_sgd",
                           "apollo_adamw",
                           "apollo_adamw_layerwise",
                           "stable_adamw",
                           "lamb",
                           "muon"})
    optim.refuse(name, full_state);
  s.add("learning_rate", &RunConfig::learning_rate, "The peak of the schedule.").range(0).also("lr");
  s.add("weight_decay", &RunConfig::weight_decay, "Decay of weight matrices and embeddings.").range(0);
  s.add("decay_bias_norm", &RunConfig::decay_bias_norm, "Also decay biases and norm weights.");
  s.add("adam_beta1", &RunConfig::adam_beta1, "Decay of the first moment.").range(0, 1).open_max();
  s.add("adam_beta2", &RunConfig::adam_beta2, "Decay of the second moment.").range(0, 1).open_max();
  s.add("adam_epsilon", &RunConfig::adam_epsilon, "Added to the root of the second moment.").range(0);
  s.add("momentum", &RunConfig::momentum, "sgd: momentum.").range(0, 1).open_max();
  s.add("dampening", &RunConfig::dampening, "sgd: dampening of the momentum.").range(0, 1);
  s.add("nesterov", &RunConfig::nesterov, "sgd: Nesterov momentum.");
  s.add("max_grad_norm", &RunConfig::max_grad_norm, "Limit of the global gradient norm; 0 or null is none.")
      .range(0)
      .null_is_zero();
  s.add_word(
      "lr_scheduler_type", &RunConfig::lr_scheduler_type,
      {"linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
       "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay",
       "warmup_linear", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"},
      "The schedule: Hugging Face's names, finetune-transformer-lm's warmup_linear, or one of DeepSpeed's.");
  s.add("lr_scheduler_kwargs", &RunConfig::lr_scheduler_kwargs, "The schedule's parameters.").as(Key::Kind::kMap);
  s.add("warmup_ratio", &RunConfig::warmup_ratio, "Warm-up as a share of all steps; warmup_steps above 0 wins.")
      .range(0, 1);
  s.add("warmup_steps", &RunConfig::warmup_steps, "Warm-up steps; below 1 a share of all steps.").range(0, kMaxCount);
  return s;
}

Section evaluation_keys() {
  Section s{"Evaluation", {}};
  s.add_choice("eval_strategy", &RunConfig::eval_strategy, {"no", "steps", "epoch"}, "When to evaluate.")
      .word("false", 0)
      .old("evaluation_strategy");
  s.add("eval_steps", &RunConfig::eval_steps, "Steps between evaluations; below 1 a share of all steps.")
      .range(0, kMaxCount)
      .open_min()
      .when_unset("logging_steps");
  s.add("eval_delay", &RunConfig::eval_delay, "Epochs or steps (as eval_strategy counts) before the first evaluation.")
      .range(0, kMaxCount);
  s.add("eval_on_start", &RunConfig::eval_on_start,
        "Also evaluate before the first step. That evaluation is logged, but does not count for the best model.");
  s.add("load_best_model_at_end", &RunConfig::load_best_model_at_end,
        "End with the weights of the checkpoint that evaluated best; save_total_limit keeps it.");
  s.add("metric_for_best_model", &RunConfig::metric_for_best_model,
        "The metric that decides: loss, perplexity or accuracy.")
      .when_unset("loss, if load_best_model_at_end is set or the schedule is reduce_lr_on_plateau");
  s.add("greater_is_better", &RunConfig::greater_is_better, "Whether a higher metric is better.")
      .when_unset("true for accuracy; false for a loss, a perplexity or an error rate");
  s.add("predict_with_generate", &RunConfig::predict_with_generate,
        "Models that hear: write down the evaluation's recordings at each evaluation (and test_files at the end), and "
        "log "
        "wer and cer, which metric_for_best_model may name.");
  s.add("generation_max_length", &RunConfig::generation_max_length, "The most tokens of such a text.")
      .range(1, 1 << 20)
      .when_unset("what seq_length leaves");
  s.add("generation_num_beams", &RunConfig::generation_num_beams, "Beams of its search; 1: the likeliest token.")
      .range(1, 64);
  s.add("error_rate_normalization", &RunConfig::error_rate_normalization,
        "What is done to both texts before they are compared: none, basic, words or chinese.");
  s.add("early_stopping_patience", &RunConfig::early_stopping_patience,
        "Stop after so many evaluations without a better metric; 0 is never.")
      .range(0, kMaxCount);
  s.add("early_stopping_threshold", &RunConfig::early_stopping_threshold, "How much better counts as better.").range(0);
  return s;
}

Section checkpoint_keys() {
  Section s{"Checkpoints", {}};
  s.add("output_dir", &RunConfig::output_dir, "Folder of the checkpoints and of the final model.").per_process();
  s.add("overwrite_output_dir", &RunConfig::overwrite_output_dir,
        "Start anew although output_dir already holds checkpoints.")
      .per_process();
  s.add_choice("save_strategy", &RunConfig::save_strategy, {"no", "steps", "epoch", "best"}, "When to save.")
      .word("false", 0);
  s.add("save_steps", &RunConfig::save_steps, "Steps between checkpoints; below 1 a share of all steps.")
      .range(0, kMaxCount)
      .open_min();
  s.add("save_total_limit", &RunConfig::save_total_limit, "How many checkpoints to keep.")
      .range(1, kMaxCount)
      .when_unset("all");
  s.add("save_only_model", &RunConfig::save_only_model,
        "Leave the optimizer's state out; such a checkpoint cannot resume.");
  s.add("async_save", &RunConfig::async_save,
        "Write checkpoints beside training, from a copy in memory; else training waits.");
  s.add("resume_from_checkpoint", &RunConfig::resume_from_checkpoint,
        "Folder of a checkpoint to go on from; true or latest takes the newest in output_dir.")
      .as(Key::Kind::kTextOrBool)
      .also("resume")
      .when_unset("start anew");
  s.add("ignore_data_skip", &RunConfig::ignore_data_skip, "On resuming, start the epoch's data over.");
  return s;
}

Section logging_keys() {
  Section s{"Logging", {}};
  s.add_choice("logging_strategy", &RunConfig::logging_strategy, {"no", "steps", "epoch"}, "When to log.")
      .word("false", 0);
  s.add("logging_steps", &RunConfig::logging_steps, "Steps between logs; below 1 a share of all steps.")
      .range(0, kMaxCount);
  s.add("logging_first_step", &RunConfig::logging_first_step, "Also log the first step.");
  s.add("logging_nan_inf_filter", &RunConfig::logging_nan_inf_filter,
        "Leave losses that are not finite out of the logged mean.");
  s.add("report_to", &RunConfig::report_to, "tensorboard writes event files; all is everything built in; none is none.")
      .per_process();
  s.add("logging_dir", &RunConfig::logging_dir, "Folder of the event files.")
      .when_unset("`runs` in output_dir")
      .per_process();
  s.add("run_name", &RunConfig::run_name, "A name for logs and plots.").when_unset("output_dir").per_process();
  s.add("log_file", &RunConfig::log_file, "File of JSON lines, one object per log.")
      .when_unset("`log.jsonl` in output_dir")
      .per_process();
  s.add("plot", &RunConfig::plot, "File for a drawing of the loss curves (SVG).").when_unset("none").per_process();
  s.add("ceilings_file", &RunConfig::ceilings_file,
        "What the device was measured to do at best (docs/benchmarks.md); logs then say the share of it that is "
        "reached. "
        "`none`: no file.")
      .when_unset("what `convoy bench` wrote for this device, if it did")
      .per_process();
  s.add_choice("log_level", &RunConfig::log_level, {"debug", "info", "warning", "error"}, "What is written to stderr.")
      .word("passive", 1)
      .word("warn", 2)
      .word("critical", 3)
      .per_process();
  s.add("disable_tqdm", &RunConfig::disable_tqdm, "Plain lines instead of an updating progress line.").per_process();
  s.add("include_num_input_tokens_seen", &RunConfig::include_num_input_tokens_seen,
        "Log how many input tokens were trained on.")
      .per_process();
  return s;
}

}  // namespace

std::vector<Section> training_sections() {
  return {batch_keys(), optimizer_keys(), evaluation_keys(), checkpoint_keys(), logging_keys()};
}

}  // namespace convoy
