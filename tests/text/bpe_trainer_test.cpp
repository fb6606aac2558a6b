#include "text/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/parallel.h"

namespace convoy {
namespace {

const std::vector<std::string> kTexts = {"the learning rate rises, the learning rate falls",
                                         "aaaaa aaaa aaa aa a",
                                         "训练语言模型，训练语言模型需要文本",
                                         "it's the gradient's norm; it's the optimizer's state",
                                         "12 123 1234 e\u0301e\u0301e\u0301",
                                         "<|endoftext|><|endoftext|>"};

TextSource source_of(std::vector<std::string> texts) {
  return [texts = std::move(texts), i = std::size_t{0}](std::string& text) mutable {
    if (i == texts.size()) return false;
    text = texts[i++];
    return true;
  };
}

// The definition: count everything anew before each merge.
std::vector<std::pair<std::string, std::string>> train_plainly(std::int64_t merges, std::int64_t min_frequency) {
  std::map<std::vector<std::string>, std::int64_t> words;
  for (const std::string& text : kTexts) {
    if (text.starts_with("<|")) continue;
    std::vector<std::size_t> ends;
    split_by_pattern(SplitPattern::kGpt2, text, ends);
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      std::vector<std::string> word;
      for (; begin < end; ++begin) word.emplace_back(1, text[begin]);
      ++words[word];
    }
  }
  std::vector<std::string> order;  // the ids: first the bytes in the order of their letters
  BpeTrainerOptions bytes_only;
  bytes_only.vocab_size = 257;
  order = train_bpe(source_of({}), bytes_only).tokens;
  const auto id_of = [&](const std::string& token) {
    return std::find(order.begin(), order.end(), token) - order.begin();
  };
  std::vector<std::pair<std::string, std::string>> out;
  while (static_cast<std::int64_t>(out.size()) < merges) {
    std::map<std::pair<std::string, std::string>, std::int64_t> counts;
    for (const auto& [word, count] : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) counts[{word[i], word[i + 1]}] += count;
    }
    std::pair<std::string, std::string> best;
    std::int64_t most = 0;
    for (const auto& [pair, count] : counts) {
      const bool first =
          std::pair(id_of(pair.first), id_of(pair.second)) < std::pair(id_of(best.first), id_of(best.second));
      if (count > most || (count == most && first)) {
        best = pair;
        most = count;
      }
    }
    if (most < min_frequency || most == 0) break;
    out.push_back(best);
    if (id_of(best.first + best.second) == std::ssize(order)) order.push_back(best.first + best.second);
    std::map<std::vector<std::string>, std::int64_t> merged;
    for (const auto& [word, count] : words) {
      std::vector<std::string> next;
      for (std::size_t i = 0; i < word.size(); ++i) {
        if (i + 1 < word.size() && word[i] == best.first && word[i + 1] == best.second) {
          next.push_back(word[i] + word[i + 1]);
          ++i;
        } else {
          next.push_back(word[i]);
        }
      }
      merged[next] += count;
    }
    words = std::move(merged);
  }
  return out;
}

TEST(BpeTrainer, MergesAsDefined) {
  BpeTrainerOptions options;
  options.vocab_size = 2000;
  options.min_frequency = 1;
  const TrainedBpe trained = train_bpe(source_of(kTexts), options);
  const auto expected = train_plainly(10000, 1);
  ASSERT_GT(expected.size(), 80u);
  ASSERT_EQ(trained.merges.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(trained.tokens[static_cast<std::size_t>(trained.merges[i].first)], expected[i].first);
    EXPECT_EQ(trained.tokens[static_cast<std::size_t>(trained.merges[i].second)], expected[i].second);
  }
}

TEST(BpeTrainer, StopsAtTheSizeOrTheFrequencyAskedFor) {
  BpeTrainerOptions options;
  options.vocab_size = 280;
  EXPECT_EQ(train_bpe(source_of(kTexts), options).tokens.size(), 279u);
  options.vocab_size = 5000;
  options.min_frequency = 3;
  EXPECT_EQ(train_bpe(source_of(kTexts), options).merges.size(), train_plainly(10000, 3).size());
  EXPECT_EQ(train_bpe(source_of({}), options).tokens.size(), 256u);
}

TEST(BpeTrainer, DoesNotDependOnThreadsOrOrder) {
  BpeTrainerOptions options;
  options.vocab_size = 400;
  options.pattern = SplitPattern::kCl100k;
  std::vector<std::string> many;
  for (int i = 0; i < 20; ++i) many.insert(many.end(), kTexts.begin(), kTexts.end());
  std::vector<std::string> backwards(many.rbegin(), many.rend());
  const int before = threads();
  set_threads(1);
  const TrainedBpe one = train_bpe(source_of(many), options);
  set_threads(4);
  const TrainedBpe four = train_bpe(source_of(backwards), options);
  set_threads(before);
  EXPECT_EQ(one.merges, four.merges);
  EXPECT_EQ(one.tokens, four.tokens);
}

class TrainedFiles : public testing::TestWithParam<const char*> {};

TEST_P(TrainedFiles, LoadAndGiveTheTextBack) {
  BpeTrainerOptions options;
  options.vocab_size = 330;
  options.pattern = parse_split_pattern(GetParam());
  options.special_tokens = {"<|endoftext|>", "<|user|>", "\"quoted\""};
  options.pad_token = "<|user|>";
  int reports = 0;
  options.progress = [&](const BpeTrainerProgress&) { ++reports; };
  const TrainedBpe trained = train_bpe(source_of(kTexts), options);
  EXPECT_GE(reports, 2);
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("trained_" + std::string(GetParam()));
  write_tokenizer(trained, options, folder);
  const auto tokenizer = load_tokenizer(folder);
  const auto first = static_cast<TokenId>(trained.tokens.size());
  EXPECT_EQ(tokenizer->vocab_size(), first + 3);
  EXPECT_EQ(tokenizer->eos_id(), first);
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer->token_to_id("\"quoted\""), first + 2);
  for (std::string text : kTexts) {
    if (options.pattern == SplitPattern::kQwen2 && text.find("\u0301") != std::string::npos) continue;  // NFC
    text += std::string(" \0\x01 \xF0\x9F\x98\x80", 8);
    const auto ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(ids, false), text);
    EXPECT_LT(ids.size(), text.size());
  }
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a\xFF"), false), "a\uFFFD");
  EXPECT_EQ(tokenizer->token_bytes(tokenizer->encode("\xFF")[0]), "\xFF");
  const Json config = read_json(folder / "tokenizer_config.json");
  EXPECT_EQ(config["pad_token"], "<|user|>");
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_TRUE(config["added_tokens_decoder"].contains(std::to_string(first)));
}

INSTANTIATE_TEST_SUITE_P(All, TrainedFiles, testing::Values("gpt2", "llama3", "qwen2", "o200k"));

TEST(BpeTrainer, RefusesWhatCannotBe) {
  const auto message = [](const BpeTrainerOptions& options) -> std::string {
    try {
      train_bpe(source_of(kTexts), options);
    } catch (const Error& failure) {
      return failure.what();
    }
    return "";
  };
  BpeTrainerOptions options;
  options.vocab_size = 200;
  EXPECT_THAT(message(options), testing::HasSubstr("256 bytes and 1 special tokens need 257"));
  options.vocab_size = 300;
  options.bos_token = "<s>";
  EXPECT_THAT(message(options), testing::HasSubstr("'<s>' is not one of the special tokens"));
  options.bos_token.reset();
  options.special_tokens = {"a", "a"};
  EXPECT_THAT(message(options), testing::HasSubstr("occurs twice"));
  try {
    parse_split_pattern("lama3");
    FAIL();
  } catch (const Error& failure) {
    EXPECT_THAT(failure.what(), testing::HasSubstr("did you mean 'llama3'"));
  }
}

}  // namespace
}  // namespace convoy
