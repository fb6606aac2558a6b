// convoy tokenize FILES --tokenizer T: count or show tokens, write a token cache, score a bigram model.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>

#include "base/error.h"
#include "base/parallel.h"
#include "cli/commands.h"
#include "data/bigram.h"
#include "data/token_cache.h"
#include "text/tokenizer.h"

namespace convoy {
namespace {

struct Arguments {
  std::vector<std::string> files, bigram_files;
  std::string tokenizer, format = "auto", text_mode = "file", text_field = "text", chat = "none", cache, text;
  std::int64_t show = 0;
  double validation_split = 0;
  std::int64_t seed = 42;
  bool skip_bad = false;
  int threads = 0;
};

SourceOptions sources_of(const Arguments& arguments, const std::vector<std::string>& files) {
  SourceOptions options;
  options.paths = files;
  options.format = parse_source_format(arguments.format);
  options.text_unit = parse_text_unit(arguments.text_mode);
  options.fields.text = arguments.text_field;
  options.skip_bad_samples = arguments.skip_bad;
  return options;
}

std::string quoted(const std::string& bytes) {
  std::string text = "'";
  for (char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      text += "\\n";
    } else if (byte < 0x20) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  return text + "'";
}

void show_text(const Tokenizer& tokenizer, const std::string& text) {
  for (TokenId id : tokenizer.encode(text)) fmt::print("{:>8}  {}\n", id, quoted(tokenizer.token_bytes(id)));
}

void show_documents(const TokenData& data, const Tokenizer& tokenizer, std::int64_t count) {
  for (std::int64_t d = 0; d < std::min(count, data.documents()); ++d) {
    fmt::print("document {}: {} tokens\n", d, data.length(d));
    std::vector<TokenId> ids(static_cast<std::size_t>(data.length(d)));
    data.copy(d, 0, data.length(d), ids.data());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      fmt::print("{:>8} {} {}\n", ids[i], data.targets(d, at, at + 1) > 0 ? '*' : ' ',
                 quoted(tokenizer.token_bytes(ids[i])));
    }
  }
  if (count > 0) fmt::print("(* = trained)\n");
}

std::shared_ptr<const TokenData> read(const Arguments& arguments, const std::vector<std::string>& files,
                                      const SampleEncoder& encoder) {
  const SourceOptions options = sources_of(arguments, files);
  return arguments.cache.empty() ? tokenize_to_memory(options, encoder)
                                 : load_or_tokenize(arguments.cache, options, encoder);
}

void print_baseline(const Arguments& arguments, const TokenData& data, const SampleEncoder& encoder) {
  const std::int64_t vocab = encoder.tokenizer().vocab_size();
  BigramBaseline baseline;
  if (arguments.bigram_files.empty()) {
    SplitOptions split;
    split.validation_fraction = arguments.validation_split;
    split.seed = static_cast<std::uint64_t>(arguments.seed);
    const Split parts = split_documents(data.documents(), split);
    baseline = bigram_baseline(data, parts.train, data, parts.validation, vocab);
  } else {
    const auto validation = read(arguments, arguments.bigram_files, encoder);
    baseline = bigram_baseline(data, all_documents(data.documents()), *validation,
                               all_documents(validation->documents()), vocab);
  }
  fmt::print("held-out targets {}\nunigram loss {:.4f}\nbigram loss {:.4f}\n", baseline.targets, baseline.unigram_loss,
             baseline.bigram_loss);
}

int tokenize_files(const Arguments& arguments) {
  set_threads(arguments.threads);
  const auto tokenizer = load_tokenizer(arguments.tokenizer);
  if (!arguments.text.empty()) {
    show_text(*tokenizer, arguments.text);
    return 0;
  }
  if (arguments.files.empty()) throw usage_error("nothing to tokenize").mend("name files, or give --text");
  EncodeSettings settings;
  if (arguments.chat != "none") settings.chat_format = parse_chat_format(arguments.chat);
  settings.append_eos = tokenizer->eos_id().has_value();
  const SampleEncoder encoder(*tokenizer, settings);
  const auto begin = std::chrono::steady_clock::now();
  const auto data = read(arguments, arguments.files, encoder);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("{}\n", data->report().text());
  fmt::print(
      "{:.2f} s, {:.1f} MB/s, {:.3f} bytes per token\n", seconds,
      static_cast<double>(data->report().bytes) * 1e-6 / seconds,
      static_cast<double>(data->report().bytes) / static_cast<double>(std::max<std::int64_t>(data->tokens(), 1)));
  show_documents(*data, *tokenizer, arguments.show);
  if (!arguments.bigram_files.empty() || arguments.validation_split > 0) print_baseline(arguments, *data, encoder);
  return 0;
}

}  // namespace

int tokenize_command(const Words& words) {
  Arguments arguments;
  CLI::App app("count or show the tokens of files", "tokenize");
  app.add_option("files", arguments.files, "text, JSONL, CSV or TSV files; globs; .gz and .zst");
  app.add_option("--tokenizer", arguments.tokenizer, "folder or file of the tokenizer")->required();
  app.add_option("--text", arguments.text, "show the tokens of this text instead");
  app.add_option("--show", arguments.show, "show the tokens of the first N documents")->check(CLI::Range(0, 1 << 30));
  app.add_option("--cache_dir,--cache-dir", arguments.cache, "write (or read) the token cache in this folder");
  app.add_option("--chat_format,--chat-format", arguments.chat,
                 "glm4, chatml, qwen2, qwen2.5, qwen3, llama3, llama3.1 or none")
      ->capture_default_str();
  app.add_option("--data_format,--data-format", arguments.format, "auto, jsonl, json, csv, tsv or text")
      ->capture_default_str();
  app.add_option("--text_mode,--text-mode", arguments.text_mode, "one document per file, paragraph or line")
      ->capture_default_str();
  app.add_option("--text_field,--text-field", arguments.text_field, "the field or column that holds the text")
      ->capture_default_str();
  app.add_option("--bigram", arguments.bigram_files, "also count a bigram model and print its loss on these files");
  app.add_option(
         "--validation_split,--validation-split", arguments.validation_split,
         "also print a bigram model's loss on this share of the documents, held out as convoy train holds it out")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", arguments.seed, "of the split")->capture_default_str();
  app.add_flag("--skip_bad_samples,--skip-bad-samples", arguments.skip_bad,
               "count malformed records instead of stopping");
  app.add_option("--threads", arguments.threads, "threads (0 = all cores)");
  if (!parse_words(app, words)) return 0;
  return tokenize_files(arguments);
}

}  // namespace convoy
