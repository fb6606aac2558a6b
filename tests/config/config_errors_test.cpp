// Every message that the run file's readers give.
#include "config/given.h"
#include "config_support.h"

namespace convoy {
namespace {

TEST(ConfigErrors, UnknownKeys) {
  EXPECT_EQ(text_error("seed: 1\nlerning_rate: 1"),
            "unknown key 'lerning_rate', did you mean 'learning_rate'? [run.yaml:2]");
  EXPECT_EQ(text_error("xyzzy_plugh_quux: 1"),
            "unknown key 'xyzzy_plugh_quux' [run.yaml:1]; docs/configuration.md lists the keys");
  EXPECT_EQ(flag_error({"--lerning-rate", "1"}),
            "unknown key 'lerning_rate', did you mean 'learning_rate'? [--lerning-rate]");
  EXPECT_EQ(flag_error({"--no_seed"}), "unknown key 'no_seed' [--no_seed]; docs/configuration.md lists the keys");
}

TEST(ConfigErrors, ValuesOutOfType) {
  EXPECT_EQ(text_error("learning_rate: fast"),
            "`learning_rate` must be a number of at least 0, not 'fast' [run.yaml:1]");
  EXPECT_EQ(text_error("learning_rate: -1"), "`learning_rate` must be a number of at least 0, not '-1' [run.yaml:1]");
  EXPECT_EQ(text_error("learning_rate: .inf"),
            "`learning_rate` must be a number of at least 0, not '.inf' [run.yaml:1]");
  EXPECT_EQ(text_error("learning_rate: null"), "`learning_rate` must be a number of at least 0, not null [run.yaml:1]");
  EXPECT_EQ(text_error("learning_rate: [1]"),
            "`learning_rate` must be a number of at least 0, not a list [run.yaml:1]");
  EXPECT_EQ(text_error("adam_beta1: 1"),
            "`adam_beta1` must be a number of at least 0 and below 1, not '1' [run.yaml:1]");
  EXPECT_EQ(text_error("save_steps: 0"), "`save_steps` must be a number above 0, not '0' [run.yaml:1]");
  EXPECT_EQ(text_error("dampening: 2"),
            "`dampening` must be a number of at least 0 and at most 1, not '2' [run.yaml:1]");
  EXPECT_EQ(text_error("seed: 1.5"), "`seed` must be a whole number of at least 0, not '1.5' [run.yaml:1]");
  EXPECT_EQ(
      text_error("per_device_train_batch_size: 0"),
      "`per_device_train_batch_size` must be a whole number of at least 1 and at most 16777216, not '0' [run.yaml:1]");
  EXPECT_EQ(text_error("from_scratch: maybe"), "`from_scratch` must be true or false, not 'maybe' [run.yaml:1]");
  EXPECT_EQ(text_error("from_scratch: {a: 1}"), "`from_scratch` must be true or false, not a map [run.yaml:1]");
  EXPECT_EQ(text_error("memory_limit: 12G"),
            "`memory_limit` must be a number of bytes of at least 0, such as 12GiB or 800MB, not '12G' [run.yaml:1]");
  EXPECT_EQ(text_error("output_dir: null"), "`output_dir` must be a text, not null [run.yaml:1]");
  EXPECT_EQ(text_error("train_files: {a: 1}"),
            "`train_files` must be a text or a list of texts, not a map [run.yaml:1]");
  EXPECT_EQ(text_error("train_files: [[a]]"), "`train_files` must be a list of texts, and holds a list [run.yaml:1]");
  EXPECT_EQ(text_error("lr_scheduler_kwargs: 3"), "`lr_scheduler_kwargs` must be a map, not '3' [run.yaml:1]");
  EXPECT_EQ(text_error("model_config: []"), "`model_config` must be a path or a map, not a list [run.yaml:1]");
  EXPECT_EQ(text_error("resume: ''"), "`resume` must be a path, true or false, not '' [run.yaml:1]");
  EXPECT_EQ(text_error("tf32: maybe"), "`tf32` must be true or false, not 'maybe' [run.yaml:1]");
  EXPECT_EQ(text_error("seed: " + std::string(200, 'x')),
            "`seed` must be a whole number of at least 0, not '" + std::string(60, 'x') + "…' [run.yaml:1]");
}

TEST(ConfigErrors, Choices) {
  EXPECT_EQ(text_error("packing: pak"),
            "`packing` must be one of pack, pad, concat, not 'pak', did you mean 'pack'? [run.yaml:1]");
  EXPECT_EQ(text_error("optim: adamw_trch"),
            "`optim` must be one of adamw, adam, sgd, lion, adagrad, openai_adam, not 'adamw_trch' [run.yaml:1]");
  EXPECT_EQ(
      text_error("optim: adafactor"),
      "`optim`: 'adafactor' is not supported [run.yaml:1]; use optim: adamw, or lion, whose state is half as large");
  EXPECT_EQ(text_error("offload_optimizer: nvme"),
            "`offload_optimizer`: 'nvme' is not supported [run.yaml:1]; use cpu");
  EXPECT_EQ(text_error("device: gpu"), "`device`: 'gpu' is not supported [run.yaml:1]; use device: cuda");
  EXPECT_EQ(
      text_error("train_sampling_strategy: group_by_length"),
      "`train_sampling_strategy`: 'group_by_length' is not supported [run.yaml:1]; use packing: pack; rows are full "
      "then, whatever the lengths");
  EXPECT_EQ(text_error("eval_strategy: best"),
            "`eval_strategy` must be one of no, steps, epoch, not 'best' [run.yaml:1]");
  EXPECT_EQ(
      text_error("report_to: tensorbord"),
      "`report_to` must be one of tensorboard, all, none, not 'tensorbord', did you mean 'tensorboard'? [run.yaml:1]");
}

TEST(ConfigErrors, RefusedKeys) {
  EXPECT_EQ(flag_error({"--group_by_length"}).substr(0, 34), "`group_by_length` is not supported");
  for (const char* key :
       {"fsdp: full_shard", "neftune_noise_alpha: 5", "auto_find_batch_size: true", "push_to_hub: true",
        "adafactor: true", "optim_args: a=1", "sharded_ddp: simple", "optim_target_modules: [a]"})
    EXPECT_NE(text_error(key).find("is not supported [run.yaml:1]; "), std::string::npos) << key;
}

TEST(ConfigErrors, OneKeyUnderTwoNames) {
  EXPECT_EQ(text_error("seq_length: 8\nblock_size: 9"),
            "`block_size` is the same key as `seq_length` (run.yaml:1) [run.yaml:2]; keep one of them");
}

TEST(ConfigErrors, CommandLine) {
  EXPECT_EQ(flag_error({"--learning_rate"}),
            "`--learning_rate` needs a value: a number of at least 0 [--learning_rate]");
  EXPECT_EQ(flag_error({"--learning_rate", "--seed", "1"}),
            "`--learning_rate` needs a value: a number of at least 0 [--learning_rate]");
  EXPECT_EQ(flag_error({"--train_files"}), "`--train_files` needs a value: a text or a list of texts [--train_files]");
  EXPECT_EQ(flag_error({"--ddp_timeout"}), "`--ddp_timeout` needs a value [--ddp_timeout]");
  EXPECT_EQ(flag_error({"-x"}), "'-x' is not a flag [command line]; flags start with `--`");
  EXPECT_EQ(flag_error({"--"}), "'--' is not a flag [command line]; flags start with `--`");
  EXPECT_EQ(flag_error({"--no-bf16=1"}), "`--no-bf16` takes no value [--no-bf16]");
  EXPECT_EQ(
      flag_error({"a.yaml", "b.yaml"}),
      "'b.yaml' belongs to no flag, and there is a run file already: 'a.yaml' [command line]; give one run file, and "
      "values right after their flag");
  EXPECT_EQ(
      flag_error({"/no/such.yaml"}),
      "there is no run file '/no/such.yaml' [command line]; give a YAML or JSON file, and flags as `--key value`");
  EXPECT_EQ(flag_error({"--run_name", "\xff"}), "the value is not UTF-8 text [--run_name]");
  EXPECT_EQ(flag_error({"\xff"}), "an argument is not UTF-8 text [command line]");
  EXPECT_EQ(flag_error({"--seed", "x"}), "`seed` must be a whole number of at least 0, not 'x' [--seed]");
  EXPECT_EQ(flag_error({"--lr_scheduler_kwargs", "{a: "}), "a key must be plain text [--lr_scheduler_kwargs:1]");
}

TEST(ConfigErrors, Precision) {
  EXPECT_EQ(text_error("fp16: true\nbf16: true"),
            "At most one of fp16 and bf16 can be True, but not both [run.yaml:2, run.yaml:1]; keep one of them");
  EXPECT_EQ(text_error("fp16: true\ndtype: f32").substr(0, 57),
            "`fp16: true` and another `dtype` contradict each other [r");
  const auto fp8 = [](const std::string& key, const std::string& where) {
    return "`fp8: true` and this `" + key + "` contradict each other: what is not in 8 bits is in bf16 [" + where +
           "]; leave `" + key + "` out, or fp8";
  };
  EXPECT_EQ(text_error("fp8: true\nfp16: true"), fp8("fp16", "run.yaml:1, run.yaml:2"));
  EXPECT_EQ(text_error("dtype: f32\nfp8: true"), fp8("dtype", "run.yaml:2, run.yaml:1"));
  EXPECT_EQ(text_error("bf16: false\nfp8: true"), fp8("bf16", "run.yaml:2, run.yaml:1"));
  EXPECT_EQ(text_error("bf16: true\ndtype: f32").substr(0, 57),
            "`bf16: true` and another `dtype` contradict each other [r");
  EXPECT_EQ(text_error("bf16: false\ndtype: bf16").substr(0, 54),
            "`bf16: false` and `dtype: bf16` contradict each other ");
  EXPECT_EQ(
      text_error("gradient_checkpointing: true\nrecompute: none"),
      "`gradient_checkpointing: true` and `recompute: none` contradict each other [run.yaml:1, run.yaml:2]; keep one "
      "of them");
  EXPECT_EQ(text_error("gradient_checkpointing: false\nrecompute: full").substr(0, 59),
            "`gradient_checkpointing: false` and `recompute: full` contr");
}

TEST(ConfigErrors, Intervals) {
  EXPECT_EQ(
      text_error("logging_steps: 1.5"),
      "`logging_steps` must be a whole number if bigger than 1, not 1.5 [run.yaml:1]; give a whole number of steps, or "
      "a share of all steps below 1");
  for (const char* key : {"eval_steps", "save_steps", "warmup_steps", "validation_split"})
    EXPECT_NE(text_error(std::string(key) + ": 2.5").find("must be a whole number if bigger than 1"),
              std::string::npos);
  EXPECT_EQ(text_error("logging_steps: 0"),
            "`logging_strategy: steps` needs `logging_steps` above 0 [run.yaml:1]; set "
            "logging_steps, or logging_strategy: no");
  EXPECT_EQ(text_error("logging_steps: 0\nlogging_strategy: no\neval_strategy: steps"),
            "`eval_strategy: steps` needs `eval_steps` or `logging_steps` above 0 [run.yaml:3]; set eval_steps");
}

TEST(ConfigErrors, Evaluation) {
  EXPECT_EQ(text_error("eval_strategy: epoch"),
            "`eval_strategy: epoch` needs data to evaluate on [run.yaml:1]; give "
            "validation_files or validation_split");
  EXPECT_EQ(text_error("eval_on_start: true").substr(0, 49), "`eval_on_start: true` needs data to evaluate on [");
  EXPECT_EQ(text_error("validation_files: a\nvalidation_split: 0.1"),
            "`validation_split` and `validation_files` are both given [run.yaml:2]; keep one of them");
  EXPECT_EQ(text_error("lr_scheduler_type: reduce_lr_on_plateau"),
            "`lr_scheduler_type: reduce_lr_on_plateau` needs evaluations [run.yaml:1]; set eval_strategy");
  EXPECT_EQ(text_error("save_strategy: best"),
            "`save_strategy: best` needs evaluations [run.yaml:1]; set eval_strategy");
  EXPECT_EQ(
      text_error("save_strategy: best\neval_strategy: epoch\nvalidation_split: 1"),
      "`save_strategy: best` needs `metric_for_best_model` [run.yaml:1]; set metric_for_best_model, such as loss");
  EXPECT_EQ(text_error("early_stopping_patience: 2"),
            "`early_stopping_patience` needs `load_best_model_at_end: true` [run.yaml:1]; set load_best_model_at_end");
}

TEST(ConfigErrors, BestModel) {
  EXPECT_EQ(text_error("load_best_model_at_end: true"),
            "`load_best_model_at_end` needs evaluations [run.yaml:1]; set eval_strategy");
  const std::string base = "load_best_model_at_end: true\nvalidation_split: 1\neval_strategy: ";
  EXPECT_EQ(text_error(base + "epoch"),
            "`load_best_model_at_end` needs the save and eval strategy to match, but found `save_strategy: steps` and "
            "`eval_strategy: epoch` [run.yaml:1]; set both to steps or both to epoch");
  EXPECT_EQ(
      text_error(base + "steps\nsave_steps: 15\neval_steps: 10"),
      "`load_best_model_at_end` needs `save_steps` to be a multiple of `eval_steps`, but found 15 and 10 [run.yaml:4]; "
      "set save_steps to a multiple of eval_steps");
  EXPECT_NE(text_error(base + "steps\nsave_steps: 0.1\neval_steps: 10")
                .find("but found 0.1 and 10, a share and a number of steps"),
            std::string::npos);
  EXPECT_NE(text_error(base + "steps\nsave_steps: 0.15\neval_steps: 0.1").find("a multiple"), std::string::npos);
  parse_run_text(base + "steps\nsave_steps: 0.3\neval_steps: 0.1", "r.yaml");
  parse_run_text(base + "steps\nsave_steps: 20\neval_steps: 10", "r.yaml");
  parse_run_text(base + "epoch\nsave_strategy: epoch", "r.yaml");
  parse_run_text(base + "epoch\nsave_strategy: best\nmetric_for_best_model: loss", "r.yaml");
}

TEST(ConfigErrors, ModelAndOptimizer) {
  EXPECT_EQ(
      text_error("model_config: a.json"),
      "`model_config` is only for `from_scratch: true` [run.yaml:1]; set from_scratch, or leave model_config out");
  EXPECT_EQ(text_error("optim: sgd\nnesterov: true"),
            "`nesterov` needs `momentum` above 0 and `dampening: 0` [run.yaml:2]; set momentum, or leave nesterov out");
  EXPECT_EQ(text_error("overwrite_output_dir: true\nresume: true"),
            "`overwrite_output_dir` starts anew, and `resume_from_checkpoint` goes on [run.yaml:1]; keep one of them");
}

}  // namespace
}  // namespace convoy
