// convoy tokenizer train FILES --output FOLDER
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/parallel.h"
#include "cli/commands.h"
#include "data/source.h"
#include "text/bpe_trainer.h"

namespace convoy {
namespace {

struct Arguments {
  std::vector<std::string> files;
  std::string output, pattern = "qwen2", format = "auto", text_field = "text";
  std::int64_t vocab_size = 32000, min_frequency = 2;
  std::vector<std::string> special = {"<|endoftext|>"};
  std::string bos, eos, pad;
  int threads = 0;
};

void train(const Arguments& arguments);

}  // namespace

int tokenizer_command(const Words& words) {
  Arguments arguments;
  CLI::App app("train a byte-level BPE tokenizer from text", "tokenizer");
  auto* train_app = app.add_subcommand("train", "learn a vocabulary from files and write tokenizer.json");
  train_app->add_option("files", arguments.files, "text, JSONL, CSV or TSV files; globs; .gz and .zst")->required();
  train_app->add_option("-o,--output", arguments.output, "folder for tokenizer.json")->required();
  train_app->add_option("--vocab_size,--vocab-size", arguments.vocab_size, "tokens in all, the special ones included")
      ->capture_default_str();
  train_app
      ->add_option("--min_frequency,--min-frequency", arguments.min_frequency, "pairs that are rarer are not merged")
      ->capture_default_str();
  train_app->add_option("--pattern", arguments.pattern, "how text is cut: gpt2, llama3, qwen2 or o200k")
      ->capture_default_str();
  train_app->add_option("--special_tokens,--special-tokens", arguments.special, "special tokens")
      ->capture_default_str();
  train_app->add_option("--bos", arguments.bos, "the special token that begins a text");
  train_app->add_option("--eos", arguments.eos, "the special token that ends a text");
  train_app->add_option("--pad", arguments.pad, "the special token that fills rows");
  train_app->add_option("--data_format,--data-format", arguments.format, "auto, text, jsonl, csv or tsv")
      ->capture_default_str();
  train_app->add_option("--text_field,--text-field", arguments.text_field, "the field or column that holds the text")
      ->capture_default_str();
  train_app->add_option("--threads", arguments.threads, "threads (0 = all cores)");
  app.require_subcommand(1);
  if (!parse_words(app, words)) return 0;
  train(arguments);
  return 0;
}

namespace {

// Everything that a sample says.
std::string all_text(const Sample& sample) {
  if (sample.kind == Sample::Kind::kText) return sample.text;
  std::string text = sample.prompt + sample.completion;
  for (const ChatMessage& message : sample.messages) text += message.content + "\n";
  return text;
}

void train(const Arguments& arguments) {
  set_threads(arguments.threads);
  BpeTrainerOptions options;
  options.pattern = parse_split_pattern(arguments.pattern);
  options.vocab_size = arguments.vocab_size;
  options.min_frequency = arguments.min_frequency;
  options.special_tokens = arguments.special;
  if (!arguments.bos.empty()) options.bos_token = arguments.bos;
  if (!arguments.eos.empty()) options.eos_token = arguments.eos;
  if (!arguments.pad.empty()) options.pad_token = arguments.pad;
  if (isatty(STDERR_FILENO) != 0) {
    options.progress = [](const BpeTrainerProgress& p) {
      const bool counting = p.stage == BpeTrainerProgress::Stage::kCounting;
      fmt::print(stderr, "\r{} {}        ", counting ? "read MB:" : "tokens:", counting ? p.done / 1000000 : p.done);
    };
  }
  SourceOptions sources;
  sources.paths = arguments.files;
  sources.format = parse_source_format(arguments.format);
  sources.fields.text = arguments.text_field;
  DataReport report;
  SampleReader reader(sources, report);
  const TextSource next_text = [&](std::string& text) {
    Sample sample;
    if (!reader.next(sample)) return false;
    text = all_text(sample);
    return true;
  };
  const TrainedBpe trained = train_bpe(next_text, options);
  if (options.progress) fmt::print(stderr, "\n");
  write_tokenizer(trained, options, arguments.output);
  fmt::print("{}: {} tokens, {} merges, {} special tokens\n", arguments.output,
             trained.tokens.size() + options.special_tokens.size(), trained.merges.size(),
             options.special_tokens.size());
}

}  // namespace
}  // namespace convoy
