// Bytes of text per second: cutting into pieces, encoding, decoding, training. The text is a file named by
// CONVOY_BENCH_TEXT, else one made up here; the vocabulary is trained on it.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>

#include "base/files.h"
#include "base/random.h"
#include "text/bpe_trainer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace convoy {
namespace {

// Words of a Zipf-like frequency, in Latin letters or, like Chinese, without spaces.
std::string made_up_text(bool chinese) {
  RandomStream random(1, chinese ? 1 : 0);
  std::vector<std::string> words(20000);
  for (std::string& word : words) {
    const std::uint64_t length = 1 + random.below(chinese ? 3 : 9);
    for (std::uint64_t i = 0; i < length; ++i) {
      append_utf8(word, static_cast<char32_t>(chinese ? 0x4E00 + random.below(3000) : 'a' + random.below(26)));
    }
  }
  std::string text;
  while (text.size() < 4'000'000) {
    const double u = random.uniform();
    text += words[static_cast<std::size_t>(u * u * u * static_cast<double>(words.size()))];
    if (random.below(8) == 0) text += chinese ? "，" : ",";
    if (!chinese) text += ' ';
  }
  return text;
}

const std::string& text_of(std::int64_t kind) {
  static const std::string texts[] = {made_up_text(false), made_up_text(true)};
  static const char* file = std::getenv("CONVOY_BENCH_TEXT");
  static const std::string own = file != nullptr ? read_file(file) : "";
  return file != nullptr ? own : texts[kind];
}

TrainedBpe train(std::int64_t kind, const BpeTrainerOptions& options) {
  bool given = false;
  return train_bpe(
      [&](std::string& text) {
        if (given) return false;
        text = text_of(kind);
        return given = true;
      },
      options);
}

const Tokenizer& tokenizer_of(std::int64_t kind, SplitPattern pattern) {
  static std::unique_ptr<Tokenizer> tokenizers[2][4];
  auto& slot = tokenizers[kind][static_cast<std::size_t>(pattern)];
  if (!slot) {
    BpeTrainerOptions options;
    options.pattern = pattern;
    const auto folder = std::filesystem::temp_directory_path() / "convoy_tokenizer_bench";
    write_tokenizer(train(kind, options), options, folder);
    slot = load_tokenizer(folder);
    std::filesystem::remove_all(folder);
  }
  return *slot;
}

void set_bytes(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(bytes));
  state.SetLabel(state.range(0) == 0 ? "Latin" : "Chinese");
}

void Split(benchmark::State& state) {
  const std::string& text = text_of(state.range(0));
  std::vector<std::size_t> ends;
  for (auto _ : state) {
    ends.clear();
    split_by_pattern(static_cast<SplitPattern>(state.range(1)), text, ends);
    benchmark::DoNotOptimize(ends.data());
  }
  set_bytes(state, text.size());
}

void Encode(benchmark::State& state) {
  const std::string& text = text_of(state.range(0));
  const Tokenizer& tokenizer = tokenizer_of(state.range(0), static_cast<SplitPattern>(state.range(1)));
  std::vector<TokenId> ids;
  for (auto _ : state) {
    ids.clear();
    tokenizer.encode(text, {}, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  set_bytes(state, text.size());
}

void Decode(benchmark::State& state) {
  const Tokenizer& tokenizer = tokenizer_of(state.range(0), SplitPattern::kGpt2);
  const std::vector<TokenId> ids = tokenizer.encode(text_of(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.decode(ids, true));
  set_bytes(state, text_of(state.range(0)).size());
}

void Train(benchmark::State& state) {
  const BpeTrainerOptions options;
  for (auto _ : state) benchmark::DoNotOptimize(train(state.range(0), options).merges.size());
  set_bytes(state, text_of(state.range(0)).size());
}

BENCHMARK(Split)->ArgsProduct({{0, 1}, {0, 1, 2, 3}})->Unit(benchmark::kMillisecond);
BENCHMARK(Encode)->ArgsProduct({{0, 1}, {0, 1, 2, 3}})->Unit(benchmark::kMillisecond);
BENCHMARK(Decode)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);
BENCHMARK(Train)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace convoy

BENCHMARK_MAIN();
