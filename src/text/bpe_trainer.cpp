#include "text/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/parallel.h"
#include "base/suggest.h"
#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

namespace convoy {
namespace {

using WordCounts = StringMap<std::uint64_t>;

// Bytes have the ids of their letters' order, as in GPT-2's vocabulary: "!" is 0.
std::array<std::uint8_t, 256> bytes_by_id() {
  std::array<std::uint8_t, 256> bytes{};
  for (unsigned b = 0; b < 256; ++b) bytes[b] = static_cast<std::uint8_t>(b);
  std::sort(bytes.begin(), bytes.end(), [](auto a, auto b) { return byte_letter(a) < byte_letter(b); });
  return bytes;
}

void check_options(const BpeTrainerOptions& options) {
  std::set<std::string> names;
  for (const std::string& token : options.special_tokens) {
    if (token.empty() || !names.insert(token).second) {
      throw usage_error(fmt::format("special token '{}' is empty or occurs twice", token));
    }
    if (find_invalid_utf8(token) != std::string::npos) throw usage_error("a special token is not valid UTF-8");
  }
  const auto least = static_cast<std::int64_t>(256 + options.special_tokens.size());
  if (options.vocab_size < least || options.vocab_size > Vocabulary::kLargestId) {
    throw usage_error(
        fmt::format("a vocabulary of {} tokens is not possible: 256 bytes and {} special tokens need {}, "
                    "and {} is the most",
                    options.vocab_size, options.special_tokens.size(), least, Vocabulary::kLargestId));
  }
  for (const auto* name : {&options.bos_token, &options.eos_token, &options.pad_token}) {
    if (*name && names.count(**name) == 0) {
      throw usage_error(fmt::format("token '{}' is not one of the special tokens", **name))
          .mend("add it to the special tokens");
    }
  }
}

// Counts the pieces ("words") of texts.
class WordCounter {
 public:
  explicit WordCounter(const BpeTrainerOptions& options) : options_(options) {
    if (options.pattern == SplitPattern::kQwen2) normalizers_ = read_normalizers(Json{{"type", "NFC"}});
    for (const std::string& content : options.special_tokens) splitter_.add(AddedToken{content, 0}, content);
  }

  WordCounts count(const TextSource& next_text) {
    WordCounts words;
    std::vector<std::string> batch;
    std::int64_t done = 0;
    bool more = true;
    while (more) {
      batch.clear();
      std::size_t bytes = 0;
      std::string text;
      while (bytes < kBatchBytes && (more = next_text(text))) {
        bytes += text.size();
        batch.push_back(std::move(text));
        text.clear();
      }
      count_batch(batch, words);
      done += static_cast<std::int64_t>(bytes);
      if (options_.progress) options_.progress({BpeTrainerProgress::Stage::kCounting, done, 0});
    }
    return words;
  }

 private:
  static constexpr std::size_t kBatchBytes = std::size_t{32} << 20;

  void count_batch(const std::vector<std::string>& batch, WordCounts& words) const {
    const auto groups = std::min<std::int64_t>(static_cast<std::int64_t>(batch.size()), std::int64_t{threads()} * 2);
    std::vector<WordCounts> parts(static_cast<std::size_t>(groups));
    parallel_for(groups, [&](std::int64_t group) {
      for (auto i = static_cast<std::size_t>(group); i < batch.size(); i += static_cast<std::size_t>(groups)) {
        count_text(batch[i], parts[static_cast<std::size_t>(group)]);
      }
    });
    for (WordCounts& part : parts) {
      if (words.empty()) {
        words.swap(part);
        continue;
      }
      for (const auto& [word, count] : part) words[word] += count;
    }
  }

  void count_text(const std::string& text, WordCounts& words) const {
    std::vector<std::size_t> ends;
    splitter_.split(
        text, true, [](TokenId) {},
        [&](std::size_t begin, std::size_t end) {
          std::string part = text.substr(begin, end - begin);
          for (const auto& normalizer : normalizers_) normalizer->apply(part);
          ends.clear();
          split_by_pattern(options_.pattern, part, ends);
          std::size_t from = 0;
          for (const std::size_t to : ends) {
            const auto word = std::string_view(part).substr(from, to - from);
            from = to;
            if (const auto known = words.find(word); known != words.end()) {
              ++known->second;
            } else {
              words.emplace(word, 1);
            }
          }
        });
  }

  const BpeTrainerOptions& options_;
  std::vector<std::unique_ptr<const Normalizer>> normalizers_;
  AddedTokenSplitter splitter_;
};

// The words as linked lists of tokens, the counts of neighbouring pairs kept up to date under merges.
class Merger {
 public:
  Merger(const WordCounts& words, const BpeTrainerOptions& options);
  TrainedBpe run();

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::uint32_t> places;  // where the left token stands, or stood
  };
  struct Candidate {
    std::int64_t count;
    std::uint64_t pair;
    // The best is the largest: the highest count, then the lowest ids.
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }

  void add_word(std::string_view word, std::int64_t count);
  void change(TokenId left, TokenId right, std::int64_t by, std::uint32_t place);
  TokenId token_of(TokenId left, TokenId right);
  void merge(TokenId left, TokenId right);
  void merge_at(std::uint32_t at, TokenId left, TokenId right, TokenId result);

  const BpeTrainerOptions& options_;
  TrainedBpe out_;
  StringMap<TokenId> ids_;
  std::array<TokenId, 256> byte_ids_{};
  // By place: the token (-1 once merged into its left neighbour), its neighbours in the word, the word's count.
  std::vector<TokenId> tokens_;
  std::vector<std::uint32_t> next_, previous_;
  std::vector<std::uint32_t> word_;
  std::vector<std::int64_t> word_counts_;
  std::unordered_map<std::uint64_t, Pair> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<std::uint64_t> grown_;  // pairs that a merge has made more frequent
};

Merger::Merger(const WordCounts& words, const BpeTrainerOptions& options) : options_(options) {
  for (const std::uint8_t byte : bytes_by_id()) {
    byte_ids_[byte] = static_cast<TokenId>(out_.tokens.size());
    out_.tokens.emplace_back(1, static_cast<char>(byte));
    ids_.emplace(out_.tokens.back(), byte_ids_[byte]);
  }
  std::size_t places = 0;
  for (const auto& [word, count] : words) places += word.size();
  if (places >= kNone) {
    throw data_error("the different words of the text have more than 4 GiB").mend("train on a part of the text");
  }
  for (auto* column : {&next_, &previous_, &word_}) column->reserve(places);
  tokens_.reserve(places);
  // Sorted, so that places do not depend on how the words were hashed.
  std::vector<const WordCounts::value_type*> sorted;
  sorted.reserve(words.size());
  for (const auto& word : words) sorted.push_back(&word);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  for (const auto* word : sorted) add_word(word->first, static_cast<std::int64_t>(word->second));
  for (const auto& [key, pair] : pairs_) queue_.push({pair.count, key});
  grown_.clear();
}

void Merger::add_word(std::string_view word, std::int64_t count) {
  const auto first = static_cast<std::uint32_t>(tokens_.size());
  const auto length = static_cast<std::uint32_t>(word.size());
  for (std::uint32_t i = 0; i < length; ++i) {
    tokens_.push_back(byte_ids_[static_cast<std::uint8_t>(word[i])]);
    next_.push_back(i + 1 < length ? first + i + 1 : kNone);
    previous_.push_back(i > 0 ? first + i - 1 : kNone);
    word_.push_back(static_cast<std::uint32_t>(word_counts_.size()));
  }
  word_counts_.push_back(count);
  for (std::uint32_t i = first; i + 1 < first + length; ++i) change(tokens_[i], tokens_[i + 1], count, i);
}

void Merger::change(TokenId left, TokenId right, std::int64_t by, std::uint32_t place) {
  const std::uint64_t key = key_of(left, right);
  Pair& pair = pairs_[key];
  pair.count += by;
  if (by <= 0) return;
  pair.places.push_back(place);
  grown_.push_back(key);
}

// Two merges may spell the same token; it keeps its id then.
TokenId Merger::token_of(TokenId left, TokenId right) {
  std::string bytes = out_.tokens[static_cast<std::size_t>(left)] + out_.tokens[static_cast<std::size_t>(right)];
  const auto [entry, fresh] = ids_.try_emplace(std::move(bytes), static_cast<TokenId>(out_.tokens.size()));
  if (fresh) out_.tokens.push_back(entry->first);
  return entry->second;
}

void Merger::merge_at(std::uint32_t at, TokenId left, TokenId right, TokenId result) {
  const std::uint32_t second = next_[at];
  if (tokens_[at] != left || second == kNone || tokens_[second] != right) return;  // merged otherwise since
  const std::int64_t count = word_counts_[word_[at]];
  const std::uint32_t before = previous_[at], after = next_[second];
  if (before != kNone) {
    change(tokens_[before], left, -count, before);
    change(tokens_[before], result, count, before);
  }
  if (after != kNone) {
    change(right, tokens_[after], -count, second);
    change(result, tokens_[after], count, at);
    previous_[after] = at;
  }
  tokens_[at] = result;
  tokens_[second] = -1;
  next_[at] = after;
}

void Merger::merge(TokenId left, TokenId right) {
  const TokenId result = token_of(left, right);
  out_.merges.emplace_back(left, right);
  Pair& pair = pairs_[key_of(left, right)];
  std::vector<std::uint32_t> places = std::move(pair.places);
  pair.count = 0;
  pair.places.clear();
  // From left to right, as encoding merges a run of equal tokens.
  if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
  for (const std::uint32_t at : places) merge_at(at, left, right, result);
  pairs_[key_of(left, right)].count = 0;  // overlapping occurrences are gone too
  std::sort(grown_.begin(), grown_.end());
  grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
  for (const std::uint64_t key : grown_) {
    if (const std::int64_t count = pairs_[key].count; count > 0) queue_.push({count, key});
  }
  grown_.clear();
}

TrainedBpe Merger::run() {
  const auto wanted = options_.vocab_size - static_cast<std::int64_t>(options_.special_tokens.size());
  const auto report = [&] {
    if (!options_.progress) return;
    options_.progress({BpeTrainerProgress::Stage::kMerging, static_cast<std::int64_t>(out_.tokens.size()), wanted});
  };
  while (static_cast<std::int64_t>(out_.tokens.size()) < wanted && !queue_.empty()) {
    const Candidate best = queue_.top();
    queue_.pop();
    const auto found = pairs_.find(best.pair);
    const std::int64_t count = found->second.count;
    if (best.count != count) {
      // Rarer by now: back into the queue with what is left. More frequent: a later entry says so.
      if (best.count > count && count > 0) queue_.push({count, best.pair});
      continue;
    }
    if (count <= 0 || count < options_.min_frequency) break;
    merge(static_cast<TokenId>(best.pair >> 32), static_cast<TokenId>(best.pair & 0xFFFFFFFFu));
    if (out_.merges.size() % 256 == 0) report();
  }
  report();
  return std::move(out_);
}

}  // namespace

SplitPattern parse_split_pattern(std::string_view name) {
  if (name == "gpt2") return SplitPattern::kGpt2;
  if (name == "llama3" || name == "cl100k") return SplitPattern::kCl100k;
  if (name == "qwen2") return SplitPattern::kQwen2;
  if (name == "o200k") return SplitPattern::kO200k;
  const std::vector<std::string> known{"gpt2", "llama3", "cl100k", "qwen2", "o200k"};
  throw usage_error(fmt::format("unknown pre-tokenizer '{}'{}", name, did_you_mean(name, known)))
      .mend("use gpt2, llama3, qwen2 or o200k");
}

TrainedBpe train_bpe(const TextSource& next_text, const BpeTrainerOptions& options) {
  check_options(options);
  const WordCounts words = WordCounter(options).count(next_text);
  return Merger(words, options).run();
}

}  // namespace convoy
