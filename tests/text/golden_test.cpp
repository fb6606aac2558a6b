// Ids and texts that Hugging Face tokenizers gave, and what must hold for every tokenizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "text/tokenizer.h"

namespace convoy {
namespace {

class GoldenTokenizer : public testing::TestWithParam<const char*> {
 protected:
  const std::filesystem::path folder_ = std::filesystem::path(CONVOY_TEST_DATA) / "tokenizers" / GetParam();
  const std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer(folder_);
  const Json cases_ = read_json(folder_ / "cases.json");
};

TEST_P(GoldenTokenizer, EncodesAndDecodesAsRecorded) {
  ASSERT_GE(cases_.size(), 20u);
  for (const Json& c : cases_) {
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer_->encode(text), ids) << text;
    EXPECT_EQ(tokenizer_->decode(ids, false), c["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer_->decode(ids, true), c["decoded_skip"].get<std::string>());
  }
}

TEST_P(GoldenTokenizer, StreamsWhatDecodeGives) {
  for (const Json& c : cases_) {
    for (const bool skip : {false, true}) {
      StreamingDecoder stream(*tokenizer_, skip);
      std::string text;
      for (const TokenId id : c["ids"].get<std::vector<TokenId>>()) text += stream.push(id);
      text += stream.finish();
      EXPECT_EQ(text, tokenizer_->decode(c["ids"].get<std::vector<TokenId>>(), skip));
    }
  }
}

TEST_P(GoldenTokenizer, NamesAndIdsAgree) {
  std::int64_t tokens = 0;
  for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id) {
    const auto name = tokenizer_->id_to_token(id);
    if (!name) continue;
    ++tokens;
    EXPECT_EQ(tokenizer_->token_to_id(*name), id);
  }
  EXPECT_GT(tokens, 500);
  const auto user = tokenizer_->token_to_id("<|user|>");
  ASSERT_TRUE(user);
  EXPECT_TRUE(tokenizer_->is_special(*user));
  EXPECT_FALSE(tokenizer_->is_special(0));
}

TEST_P(GoldenTokenizer, ReadsSpecialTokensOnlyWhenAsked) {
  const auto user = *tokenizer_->token_to_id("<|user|>");
  const std::string text = "a<|user|>b";
  EXPECT_THAT(tokenizer_->encode(text), testing::Contains(user));
  const auto ids = tokenizer_->encode(text, {.parse_special = false});
  EXPECT_THAT(ids, testing::Not(testing::Contains(user)));
  EXPECT_EQ(tokenizer_->decode(ids, true), text);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokenizer, testing::Values("gpt2", "llama3", "qwen2", "qwen2_nfc"));

// Further forms; tools/make_tokenizer_fixtures.py recorded what the reference libraries give.
class RecordedTokenizer : public testing::TestWithParam<const char*> {
 protected:
  const std::filesystem::path folder_ = std::filesystem::path(CONVOY_SOURCE_DIR) / "tests/text/data" / GetParam();
  const std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer(folder_);
  const Json cases_ = read_json(folder_ / "cases.json");
};

TEST_P(RecordedTokenizer, EncodesAndDecodesAsRecorded) {
  ASSERT_GE(cases_.size(), 30u);
  for (const Json& c : cases_) {
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer_->encode(text), ids) << text;
    EXPECT_EQ(tokenizer_->decode(ids, false), c["decoded"].get<std::string>());
    if (!c.contains("special_ids")) continue;  // SentencePiece knows no templates
    EXPECT_EQ(tokenizer_->encode(text, {.add_special_tokens = true}), c["special_ids"].get<std::vector<TokenId>>());
    EXPECT_EQ(tokenizer_->decode(ids, true), c["decoded_skip"].get<std::string>());
  }
}

TEST_P(RecordedTokenizer, StreamsWhatDecodeGives) {
  std::vector<TokenId> all;
  for (const Json& c : cases_) {
    for (const TokenId id : c["ids"].get<std::vector<TokenId>>()) all.push_back(id);
  }
  for (std::size_t start = 0; start < all.size(); start += 17) {
    const std::vector<TokenId> ids(all.begin() + static_cast<std::ptrdiff_t>(start),
                                   all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), start + 40)));
    for (const bool skip : {false, true}) {
      StreamingDecoder stream(*tokenizer_, skip);
      std::string text;
      for (const TokenId id : ids) text += stream.push(id);
      text += stream.finish();
      EXPECT_EQ(text, tokenizer_->decode(ids, skip));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RecordedTokenizer,
                         testing::Values("bert_suffix", "byte_fallback", "byte_level_prefix_space",
                                         "digits_punctuation", "merged_with_previous", "metaspace_first",
                                         "sentencepiece", "split_sequence", "whitespace_prefix"));

}  // namespace
}  // namespace convoy
