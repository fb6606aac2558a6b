// The keys of model, data and machine.
#include "config/key_registry.h"

namespace convoy {
namespace {

// The words of `dtype` stand in the order of the type's values.
static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kBF16) == 1 &&
              static_cast<int>(DType::kF16) == 2);

constexpr double kMostElements = 1e15;

Section model_keys() {
  Section s{"Model", {}};
  s.add("model", &RunConfig::model, "Folder of a Hugging Face model: config.json, safetensors, tokenizer.")
      .also("model_name_or_path")
      .when_unset("only with from_scratch and model_config")
      .per_process();
  s.add("from_scratch", &RunConfig::from_scratch, "Start from random weights, drawn from the seed.");
  s.add("model_config", &RunConfig::model_config,
        "For from_scratch: the path of a config.json, or the configuration itself as a map.")
      .as(Key::Kind::kTextOrMap)
      .also("config_name")
      .when_unset("the model folder's config.json")
      .per_process();
  s.add("tokenizer", &RunConfig::tokenizer, "Folder or file of the tokenizer.")
      .also("tokenizer_name")
      .when_unset("the model folder")
      .per_process();
  s.add_choice("dtype", &RunConfig::dtype, {"f32", "bf16", "f16"},
               "Type of the weights that the step computes with. bf16 and f16 keep float32 master weights and moments; "
               "f16 scales the loss.")
      .word("float32", 0)
      .word("fp32", 0)
      .word("bfloat16", 1)
      .word("float16", 2)
      .word("fp16", 2)
      .word("torch.float32", 0)
      .word("torch.bfloat16", 1)
      .word("torch.float16", 2)
      .also("torch_dtype")
      .when_unset("f32 from scratch, else as the weights are stored");
  s.add("rope_theta", &RunConfig::rope_theta, "Replaces the base of the rotary position embedding.")
      .range(0)
      .open_min()
      .when_unset("as config.json says");
  s.add("train_pad_row", &RunConfig::train_pad_row,
        "Also train the embedding row of the padding token, which otherwise gets no gradient.");
  s.add("freeze_encoder", &RunConfig::freeze_encoder,
        "Do not train the audio encoder of Whisper or GLM-ASR: it has neither gradients nor optimizer state.");
  return s;
}

Section task_keys() {
  Section s{"Task", {}};
  s.add_choice(
       "task", &RunConfig::task, {"causal_lm", "multiple_choice", "classification"},
       "What is learned: the next token; which of several endings is right (gpt2 and openai-gpt), beside the next "
       "token; the class of a text. See docs/tasks.md.")
      .word("sequence_classification", 2);
  s.add("num_choices", &RunConfig::num_choices, "multiple_choice: endings of each sample.").range(2, 64);
  s.add("lm_coef", &RunConfig::lm_coef, "multiple_choice: weight of the language model's loss beside the choice's.")
      .range(0);
  s.add("class_names", &RunConfig::class_names, "classification: the classes, in the order of their numbers.")
      .when_unset("the model's id2label, else what the training files hold");
  s.add("label_field", &RunConfig::label_field,
        "The field or column that holds the class, or the right ending's number.")
      .also("label_column");
  return s;
}

Section trained_keys() {
  Section s{"What is trained", {}};
  s.add("freeze", &RunConfig::freeze,
        "Weights to leave as they are: patterns over their names in files, where `*` stands for anything, `/…/` is a "
        "regular expression, and a pattern after `!` trains again what an earlier one froze. See docs/fine-tuning.md.");
  s.add("lora_rank", &RunConfig::lora_rank, "Train LoRA adapters of this rank instead of the model's weights.")
      .range(1, 65536)
      .also("lora_r")
      .when_unset("no LoRA");
  s.add("lora_alpha", &RunConfig::lora_alpha, "An adapter's change counts lora_alpha / lora_rank.")
      .range(0)
      .open_min()
      .when_unset("twice lora_rank");
  s.add("lora_dropout", &RunConfig::lora_dropout, "Dropout of the adapters' inputs.").range(0, 1).open_max();
  s.add("use_rslora", &RunConfig::use_rslora, "Let it count lora_alpha / √lora_rank instead (rsLoRA).");
  s.add("target_modules", &RunConfig::target_modules,
        "Linear layers that get adapters: names or ends of names of Hugging Face's modules (q_proj), all-linear, or "
        "one `/regular expression/` over whole names.")
      .also("lora_target_modules")
      .also("lora_target")
      .when_unset("all-linear: every one but the head");
  s.add("exclude_modules", &RunConfig::exclude_modules, "Linear layers that get none, as target_modules.");
  s.add("layers_to_transform", &RunConfig::layers_to_transform,
        "Only these transformer blocks get adapters, counted from 0: numbers and ranges such as 4-7.")
      .when_unset("all");
  s.add("modules_to_save", &RunConfig::modules_to_save,
        "Modules that are trained whole beside the adapters and saved with them, as lm_head or embed_tokens.");
  s.add("adapter", &RunConfig::adapter,
        "Folder of a LoRA adapter to go on training; its adapter_config.json says rank and modules.")
      .also("adapter_name_or_path")
      .when_unset("a new adapter, where there is a lora_rank");
  return s;
}

Section data_keys() {
  Section s{"Data", {}};
  s.add("train_files", &RunConfig::train_files, "Training files; patterns such as `data/*.jsonl` are expanded.")
      .also("train_file")
      .per_process();
  s.add("validation_files", &RunConfig::validation_files, "Evaluation files, as train_files.")
      .also("validation_file")
      .also("eval_files")
      .per_process();
  s.add("test_files", &RunConfig::test_files,
        "Files on which the final model (the best, with load_best_model_at_end) is evaluated after training.")
      .also("test_file")
      .per_process();
  s.add_choice("data_format", &RunConfig::data_format, {"auto", "jsonl", "text", "csv", "tsv", "parquet"},
               "How the files are read; auto goes by the file's ending. parquet needs a build with CONVOY_PARQUET.");
  s.add_choice("text_mode", &RunConfig::text_mode, {"file", "paragraph", "line"},
               "What one sample of a text file is: the whole file, a paragraph (blank lines between), a line.");
  s.add("text_field", &RunConfig::text_field, "The field or column that holds the text.").also("text_column");
  s.add_choice(
       "chat_format", &RunConfig::chat_format,
       {"auto", "glm4", "chatml", "qwen2", "qwen2.5", "qwen3", "llama3", "llama3.1", "none", "template"},
       "How conversations become text. auto takes the model folder's chat template where it has one, else goes by "
       "the tokenizer.")
      .word("qwen25", 4);
  s.add("validation_split", &RunConfig::validation_split,
        "Samples set aside for evaluation when validation_files is empty: below 1 a fraction, else a count.")
      .range(0);
  s.add("audio_windows", &RunConfig::audio_windows,
        "GLM-ASR: the most windows of audio (30 s in the published model) that one recording may fill.")
      .range(1, 64);
  s.add("duration_buckets", &RunConfig::duration_buckets,
        "Recordings of like duration share micro-batches: how many buckets, as 6 (their bounds are chosen so that "
        "sound is "
        "padded least), or bounds in seconds, as 4,8,16,30. Rows are as long as their bucket's texts, and with "
        "mask_audio_padding windows as its sound. See docs/speech.md.")
      .when_unset("every row is as long as seq_length and audio_windows windows");
  s.add("batch_seconds", &RunConfig::batch_seconds,
        "With duration_buckets: seconds of audio of a micro-batch and rank, padding included, in training and its "
        "evaluations; the rows of a bucket follow from it.")
      .range(0)
      .open_min()
      .when_unset("only with duration_buckets, which needs it");
  s.add("mask_audio_padding", &RunConfig::mask_audio_padding,
        "The model hears a recording alone, not the silence that fills its window, so that windows may be shorter. "
        "Published models hear it; the choice is kept in the model's config.json.");
  s.add("audio_language", &RunConfig::audio_language,
        "Whisper: the language of recordings whose manifest line names none, as `en`.")
      .when_unset("no language token");
  s.add("audio_task", &RunConfig::audio_task, "Whisper: the task token beside the language, transcribe or translate.");
  s.add("audio_threads", &RunConfig::audio_threads, "Threads that make features of recordings, on each rank.")
      .range(1, 256);
  s.add("audio_cache", &RunConfig::audio_cache,
        "Folder for features, so that a second epoch does not decode again; shared by ranks and runs.")
      .when_unset("recordings are decoded in every epoch");
  s.add("audio_speeds", &RunConfig::audio_speeds,
        "Speed perturbation: each recording is played at one of these speeds, drawn anew each epoch, as 0.9,1,1.1. "
        "Training only.")
      .when_unset("as recorded");
  s.add(
       "mask_time_prob", &RunConfig::mask_time_prob,
       "SpecAugment as Whisper's config.json has it: the share of frames in masked spans. Training only, as all masks.")
      .range(0, 1);
  s.add("mask_time_length", &RunConfig::mask_time_length, "Frames of such a span.").range(1, 3000);
  s.add("mask_feature_prob", &RunConfig::mask_feature_prob, "The same over mel bins.").range(0, 1);
  s.add("mask_feature_length", &RunConfig::mask_feature_length, "Mel bins of such a span.").range(1, 1000);
  s.add("time_masks", &RunConfig::time_masks, "SpecAugment as its paper has it: masks over time for each recording.")
      .range(0, 100);
  s.add("time_mask_width", &RunConfig::time_mask_width, "The most frames of such a mask.").range(0, 3000);
  s.add("feature_masks", &RunConfig::feature_masks, "Masks over mel bins for each recording.").range(0, 100);
  s.add("feature_mask_width", &RunConfig::feature_mask_width, "The most mel bins of such a mask.").range(0, 1000);
  s.add("seq_length", &RunConfig::seq_length, "Tokens per sequence.")
      .range(1, 1 << 24)
      .also("max_seq_length")
      .also("block_size")
      .also("max_length")
      .when_unset("the model's context length, at most 1024");
  s.add_choice("packing", &RunConfig::packing, {"pack", "pad", "concat"},
               "How samples fill sequences: pack puts several side by side, each attending to itself only; pad gives "
               "each its own row; concat cuts one endless text.")
      .word("true", 0)
      .word("false", 1);
  s.add_choice("too_long", &RunConfig::too_long, {"split", "truncate"},
               "What becomes of samples longer than seq_length: cut into several, or their end left out.");
  s.add("skip_bad_samples", &RunConfig::skip_bad_samples,
        "Leave out samples that cannot be read, and say how many, instead of stopping.");
  s.add_choice("train_sampling_strategy", &RunConfig::train_sampling_strategy, {"random", "sequential"},
               "Order of the training samples: shuffled anew each epoch, or as they lie in the files.")
      .refuse("group_by_length", "use packing: pack; rows are full then, whatever the lengths");
  s.add("dataloader_drop_last", &RunConfig::dataloader_drop_last, "Leave out the last micro-batch if it is not full.");
  s.add("cache_dir", &RunConfig::cache_dir, "Folder for tokenized data.")
      .when_unset("`cache` in output_dir")
      .per_process();
  return s;
}

Section machine_keys() {
  Section s{"Precision, memory, machine", {}};
  s.add("bf16", &RunConfig::bf16, "Same as dtype: bf16.").when_unset("as dtype says");
  s.add("fp16", &RunConfig::fp16, "Same as dtype: f16.").when_unset("as dtype says");
  s.add("fp8", &RunConfig::fp8,
        "Training computes the transformer blocks' products with weights in 8 bits, E4M3 forward and E5M2 gradients, "
        "and all else in bf16, which it chooses as dtype. A GPU of compute capability 8.9 or newer gains time by it; "
        "the CPU emulates it. See docs/fp8.md.");
  s.add_choice("recompute", &RunConfig::recompute, {"none", "selective", "full", "fit"},
               "What the backward pass computes again instead of keeping: nothing, what is cheap, every block; fit: as "
               "much as memory (memory_limit) asks for, what takes the least time for its bytes first.");
  s.add("gradient_checkpointing", &RunConfig::gradient_checkpointing, "Same as recompute: full.")
      .when_unset("as recompute says");
  s.add_choice("optimizer_states", &RunConfig::optimizer_states, {"f32", "bf16"},
               "Type of the optimizer's moments; bf16 halves their memory and rounds stochastically.");
  s.add_choice(
      "gradient_dtype", &RunConfig::gradient_dtype, {"f32", "bf16", "f16"},
      "Type of weight matrices' gradients, in which micro-batches and ranks are summed: f32, or the run's own "
      "dtype, which halves their memory and rounds every sum. Those of biases, norms and embeddings stay f32.");
  s.add("master_weights", &RunConfig::master_weights,
        "Keep a float32 copy of 16-bit weights; without it they are rounded stochastically.");
  s.add("loss_chunk_rows", &RunConfig::loss_chunk_rows,
        "Rows of logits that exist at a time; 0: what suits the device.")
      .range(0, 1 << 24);
  s.add("threads", &RunConfig::threads, "Threads that compute; 0 takes every core.").range(0, 4096).per_process();
  s.add("memory_limit", &RunConfig::memory_limit,
        "The most memory that the run may plan, as 12GiB; 0 is what the machine has.")
      .bytes()
      .range(0)
      .per_process();
  s.add("deterministic", &RunConfig::deterministic, "The same run gives the same bits.").also("full_determinism");
  s.add_word("device", &RunConfig::device, {"cpu", "cuda"}, "Where the run computes: cuda needs a build with CUDA.")
      .refuse("gpu", "use device: cuda")
      .refuse("mps", "use device: cpu");
  s.add("tf32", &RunConfig::tf32,
        "cuda, dtype f32: matrix products with their factors rounded to TF32's 10 bits, several times as fast.")
      .null_is_zero();
  s.add("print_program", &RunConfig::print_program, "Print the instructions of a training step.").per_process();
  s.add("wall_clock_breakdown", &RunConfig::wall_clock_breakdown,
        "Print the seconds of each logged step by kind of operation, and each rank's share of waiting.")
      .per_process();
  s.add("steps_per_print", &RunConfig::steps_per_print,
        "Print DeepSpeed's line of step, skipped steps and rate so often.")
      .range(1, kMostElements)
      .when_unset("never")
      .per_process();
  s.add("trace", &RunConfig::trace, "Write when each instruction of the first steps ran, as a Chrome/Perfetto trace.")
      .when_unset("no trace")
      .per_process();
  return s;
}

Section rank_keys() {
  Section s{"Ranks and sharding", {}};
  s.add("num_processes", &RunConfig::num_processes, "Ranks that share the work: so many processes are started here.")
      .range(1, 4096)
      .also("num_gpus")
      .also("nproc_per_node")
      .when_unset("one, or what the launcher that started this process says")
      .per_process();
  s.add("deepspeed", &RunConfig::deepspeed,
        "A DeepSpeed configuration: the path of a JSON file, or the JSON itself. See docs/deepspeed.md.")
      .as(Key::Kind::kTextOrMap)
      .also("deepspeed_config")
      .also("deepspeed_config_file")
      .when_unset("none")
      .per_process();
  s.add("strict_ds", &RunConfig::strict_ds,
        "Refuse a DeepSpeed configuration that differs from a setting given beside it, as Hugging Face does; else the "
        "configuration counts, with a warning.")
      .per_process();
  s.add("train_batch_size", &RunConfig::train_batch_size,
        "Sequences per optimizer step over all ranks; gradient_accumulation_steps follows from it.")
      .range(1, kMostElements)
      .also("global_batch_size")
      .when_unset("per_device_train_batch_size · gradient_accumulation_steps · ranks");
  s.add("zero_stage", &RunConfig::zero_stage,
        "What the ranks shard: 0 nothing, 1 optimizer state, 2 gradients too, 3 weights too (ZeRO).")
      .range(0, 3);
  s.add("reduce_bucket_size", &RunConfig::reduce_bucket_size, "Most elements of a gradient bucket.")
      .range(1, kMostElements);
  s.add("allgather_bucket_size", &RunConfig::allgather_bucket_size, "Most elements of a bucket of gathered weights.")
      .range(1, kMostElements);
  s.add("overlap_comm", &RunConfig::overlap_comm, "Communicate beside the computation.").when_unset("true");
  s.add("stage3_prefetch_bucket_size", &RunConfig::stage3_prefetch_bucket_size,
        "Stage 3: most elements that are gathered ahead of their use.")
      .range(0, kMostElements);
  s.add("stage3_param_persistence_threshold", &RunConfig::stage3_param_persistence_threshold,
        "Stage 3: weights with fewer elements stay whole on every rank.")
      .range(0, kMostElements);
  s.add("stage3_max_live_parameters", &RunConfig::stage3_max_live_parameters,
        "Stage 3: most elements of gathered weights that are kept for another use.")
      .range(0, kMostElements);
  s.add("stage3_max_reuse_distance", &RunConfig::stage3_max_reuse_distance,
        "Stage 3: a gathered weight is kept if fewer elements than this are used before it is used again.")
      .range(0, kMostElements);
  s.add_choice("offload_optimizer", &RunConfig::offload_optimizer, {"none", "cpu"},
               "Where the optimizer's state lives: cpu frees the GPU's memory, and the update goes over the link. On "
               "the CPU device "
               "it is there anyway.")
      .refuse("nvme", "use cpu");
  s.add_choice("offload_param", &RunConfig::offload_param, {"none", "cpu"},
               "Where weights live between uses: cpu keeps them in pinned host memory, and each comes to the GPU one "
               "block ahead of the block that uses it. Of several ranks with zero_stage 3, as shards. On the CPU "
               "device they are there anyway.")
      .refuse("nvme", "use cpu");
  s.add_choice("offload_activations", &RunConfig::offload_activations, {"none", "cpu"},
               "Where activations wait for the backward pass: cpu copies them to pinned host memory and back beside "
               "the computation; with recompute what enters the blocks, without it all large ones. On the CPU device "
               "they are there anyway.")
      .refuse("nvme", "use cpu");
  s.add_choice(
       "gradient_compression", &RunConfig::gradient_compression, {"none", "fp16", "bf16", "onebit"},
       "What gradients are sent as: fp16 and bf16 halve the traffic (any stage), onebit sends signs and adds what "
       "was lost the next time (stage 0). See docs/launch.md for the effect on the result.")
      .word("fp32", 0)
      .also("communication_data_type");
  s.add("sparse_embedding_updates", &RunConfig::sparse_embedding_updates,
        "Leave rows of the embedding that a step does not use as they are: no decay, no fading moments. Without effect "
        "where the head shares the embedding.");
  s.add_word(
       "gpu_communicator", &RunConfig::gpu_communicator, {"auto", "nccl", "ipc", "host"},
       "cuda: how ranks exchange what lies in their GPUs. nccl: a GPU for each rank, also across hosts; ipc: by "
       "reading one another's memory, on one host, also where ranks share a GPU; host: through host memory; auto: "
       "on one host ipc where it can be had, else and across hosts nccl, else host.")
      .per_process();
  s.add("timeout", &RunConfig::timeout, "Seconds without a sign of progress after which a rank is given up.")
      .range(0)
      .open_min()
      .per_process();
  s.add("max_restarts", &RunConfig::max_restarts,
        "How often the run is started again, from its newest checkpoint, after a rank was lost.")
      .range(0, 1e6)
      .per_process();
  s.add("elastic", &RunConfig::elastic, "MIN:MAX ranks: a restart may go on with fewer ranks.")
      .when_unset("always as many as at the start")
      .per_process();
  s.add("scale_lr_from", &RunConfig::scale_lr_from,
        "Multiply learning_rate by ranks / this number: the linear scaling rule, for a rate that was chosen on so many "
        "ranks.")
      .range(1, 1e6)
      .when_unset("learning_rate is taken as it is");
  return s;
}

Section loss_scale_keys() {
  Section s{"Loss scaling (fp16)", {}};
  s.add("loss_scale", &RunConfig::loss_scale, "A constant scale; 0 is DeepSpeed's dynamic one.").range(0);
  s.add("initial_scale_power", &RunConfig::initial_scale_power, "The dynamic scale starts at 2 to this power.")
      .range(0, 127);
  s.add("loss_scale_window", &RunConfig::loss_scale_window, "Steps without overflow before the scale doubles.")
      .range(1, kMostElements);
  s.add("hysteresis", &RunConfig::hysteresis, "Overflows before the scale is halved.").range(1, kMostElements);
  s.add("consecutive_hysteresis", &RunConfig::consecutive_hysteresis, "Each step without overflow refills hysteresis.");
  s.add("min_loss_scale", &RunConfig::min_loss_scale, "The smallest scale; an overflow there ends the run.")
      .range(0)
      .open_min();
  return s;
}

}  // namespace

std::vector<Section> convoy_sections() {
  return {model_keys(), task_keys(), trained_keys(), data_keys(), machine_keys(), rank_keys(), loss_scale_keys()};
}

}  // namespace convoy
