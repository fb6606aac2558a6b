// The keys of model, data and machine.
#include "config/key_registry.h"

namespace convoy {
namespace {

// The words of `dtype` stand in the order of the type's values.
static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kBF16) == 1);

Section model_keys() {
  Section s{"Model", {}};
  s.add("model", &RunConfig::model, "Folder of a Hugging Face model: config.json, safetensors, tokenizer.")
      .also("model_name_or_path")
      .when_unset("only with from_scratch and model_config");
  s.add("from_scratch", &RunConfig::from_scratch, "Start from random weights, drawn from the seed.");
  s.add("model_config", &RunConfig::model_config,
        "For from_scratch: the path of a config.json, or the configuration itself as a map.")
      .as(Key::Kind::kTextOrMap)
      .also("config_name")
      .when_unset("the model folder's config.json");
  s.add("tokenizer", &RunConfig::tokenizer, "Folder or file of the tokenizer.")
      .also("tokenizer_name")
      .when_unset("the model folder");
  s.add_choice("dtype", &RunConfig::dtype, {"f32", "bf16"},
               "Type of the weights that the step computes with. bf16 keeps float32 master weights and moments.")
      .word("float32", 0)
      .word("fp32", 0)
      .word("bfloat16", 1)
      .word("torch.float32", 0)
      .word("torch.bfloat16", 1)
      .refuse("f16", "use dtype: bf16; training in float16 needs loss scaling, which is not there yet")
      .refuse("fp16", "use dtype: bf16; training in float16 needs loss scaling, which is not there yet")
      .refuse("float16", "use dtype: bf16; training in float16 needs loss scaling, which is not there yet")
      .also("torch_dtype")
      .when_unset("f32 from scratch, else as the weights are stored");
  s.add("rope_theta", &RunConfig::rope_theta, "Replaces the base of the rotary position embedding.")
      .range(0)
      .open_min()
      .when_unset("as config.json says");
  s.add("train_pad_row", &RunConfig::train_pad_row,
        "Also train the embedding row of the padding token, which otherwise gets no gradient.");
  return s;
}

Section data_keys() {
  Section s{"Data", {}};
  s.add("train_files", &RunConfig::train_files, "Training files; patterns such as `data/*.jsonl` are expanded.")
      .also("train_file");
  s.add("validation_files", &RunConfig::validation_files, "Evaluation files, as train_files.")
      .also("validation_file")
      .also("eval_files");
  s.add_choice("data_format", &RunConfig::data_format, {"auto", "jsonl", "text", "csv", "tsv"},
               "How the files are read; auto goes by the file's ending.");
  s.add_choice("text_mode", &RunConfig::text_mode, {"file", "paragraph", "line"},
               "What one sample of a text file is: the whole file, a paragraph (blank lines between), a line.");
  s.add("text_field", &RunConfig::text_field, "The field or column that holds the text.").also("text_column");
  s.add_choice("chat_format", &RunConfig::chat_format,
               {"auto", "glm4", "chatml", "qwen2", "qwen2.5", "qwen3", "llama3", "llama3.1", "none"},
               "How conversations become text; auto goes by the tokenizer.")
      .word("qwen25", 4);
  s.add("validation_split", &RunConfig::validation_split,
        "Samples set aside for evaluation when validation_files is empty: below 1 a fraction, else a count.")
      .range(0);
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
  s.add("cache_dir", &RunConfig::cache_dir, "Folder for tokenized data.").when_unset("`.cache` in output_dir");
  return s;
}

Section machine_keys() {
  Section s{"Precision, memory, machine", {}};
  s.add("bf16", &RunConfig::bf16, "Same as dtype: bf16.").when_unset("as dtype says");
  s.add("fp16", &RunConfig::fp16, "Refused when true: float16 needs loss scaling, which is not there yet.")
      .when_unset("as dtype says");
  s.add_choice("recompute", &RunConfig::recompute, {"none", "selective", "full"},
               "What the backward pass computes again instead of keeping: nothing, what is cheap, every block.");
  s.add("gradient_checkpointing", &RunConfig::gradient_checkpointing, "Same as recompute: full.")
      .when_unset("as recompute says");
  s.add("loss_chunk_rows", &RunConfig::loss_chunk_rows, "Rows of logits that exist at a time.").range(1, 1 << 24);
  s.add("threads", &RunConfig::threads, "Threads that compute; 0 takes every core.").range(0, 4096);
  s.add("memory_limit", &RunConfig::memory_limit,
        "The most memory that the run may plan, as 12GiB; 0 is what the machine has.")
      .bytes()
      .range(0);
  s.add("deterministic", &RunConfig::deterministic, "The same run gives the same bits.").also("full_determinism");
  s.add_word("device", &RunConfig::device, {"cpu"}, "Where the run computes.")
      .refuse("cuda", "use device: cpu; this build has no CUDA device")
      .refuse("gpu", "use device: cpu; this build has no CUDA device")
      .refuse("mps", "use device: cpu");
  s.add("print_program", &RunConfig::print_program, "Print the instructions of a training step.");
  return s;
}

}  // namespace

std::vector<Section> convoy_sections() {
  return {model_keys(), data_keys(), machine_keys()};
}

}  // namespace convoy
