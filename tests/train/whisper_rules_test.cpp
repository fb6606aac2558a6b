// What Whisper may say, and its tokens as timed text.
#include "train/whisper_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "speech_tokens.h"

namespace convoy {
namespace {

using testing::at;
using testing::id;
using testing::tokenizer;

std::vector<float> allowed(const WhisperRules& rules, const std::vector<TokenId>& made,
                           const std::vector<std::pair<TokenId, float>>& liked = {},
                           const WhisperRules::Opening& opening = {}) {
  std::vector<float> logits(static_cast<std::size_t>(tokenizer().vocab_size()), 0.0f);
  for (const auto& [token, value] : liked) logits[static_cast<std::size_t>(token)] = value;
  rules.apply(opening, made, logits);
  return logits;
}
bool may(const std::vector<float>& logits, TokenId token) {
  return std::isfinite(logits[static_cast<std::size_t>(token)]);
}

TEST(WhisperRules, TheOpeningAllowsOneTokenOfEachList) {
  const WhisperRules rules(tokenizer(), Json::object(), id("<|endoftext|>"), false);
  const WhisperRules::Opening opening = {whisper_languages(tokenizer()), {id("<|transcribe|>")}};
  ASSERT_EQ(opening[0], (std::vector<TokenId>{id("<|en|>"), id("<|zh|>")}));
  const auto first = allowed(rules, {}, {{id("<|zh|>"), 1}, {'a', 9}}, opening);
  EXPECT_TRUE(may(first, id("<|zh|>")));
  EXPECT_FALSE(may(first, id("<|en|>")) || may(first, 'a'));
  EXPECT_TRUE(may(allowed(rules, {id("<|zh|>")}, {}, opening), id("<|transcribe|>")));
  const auto said = allowed(rules, {id("<|zh|>"), id("<|transcribe|>")}, {}, opening);
  EXPECT_TRUE(may(said, 'a') && may(said, id("<|endoftext|>")));
  EXPECT_FALSE(may(said, id("<|zh|>")) || may(said, at(0)));
}

TEST(WhisperRules, SuppressedTokensAreNotSaid) {
  const Json generation{{"suppress_tokens", {'x', -1}}, {"begin_suppress_tokens", {' ', id("<|endoftext|>")}}};
  const WhisperRules rules(tokenizer(), generation, id("<|endoftext|>"), false);
  const auto first = allowed(rules, {}), later = allowed(rules, {'a'});
  EXPECT_FALSE(may(first, 'x') || may(first, ' ') || may(first, id("<|endoftext|>")));
  EXPECT_FALSE(may(later, 'x'));
  EXPECT_TRUE(may(later, ' ') && may(later, id("<|endoftext|>")));
}

TEST(WhisperRules, TimesComeInPairsAndNeverGoBack) {
  const WhisperRules rules(tokenizer(), {{"max_initial_timestamp_index", 10}}, id("<|endoftext|>"), true);
  const auto first = allowed(rules, {});
  EXPECT_TRUE(may(first, at(0)) && may(first, at(0.2)));
  EXPECT_FALSE(may(first, at(0.22)) || may(first, 'a') || may(first, id("<|endoftext|>")));
  const auto text = allowed(rules, {at(0.1)}, {{'a', 9}});
  EXPECT_TRUE(may(text, 'a'));
  EXPECT_FALSE(may(text, at(0.5))) << "one time begins a segment";
  const auto open = allowed(rules, {at(0.1), 'a'}, {{'a', 9}});
  EXPECT_TRUE(may(open, 'a') && may(open, at(0.12)));
  EXPECT_FALSE(may(open, at(0.1))) << "a segment lasts";
  const auto closed = allowed(rules, {at(0.1), 'a', at(0.4)}, {{'a', 9}, {id("<|endoftext|>"), 8}});
  EXPECT_TRUE(may(closed, at(0.4)) && may(closed, id("<|endoftext|>")));
  EXPECT_FALSE(may(closed, 'a') || may(closed, at(0.38)));
  const auto again = allowed(rules, {at(0.1), 'a', at(0.4), at(0.4)}, {{'a', 9}});
  EXPECT_TRUE(may(again, 'a'));
  EXPECT_FALSE(may(again, at(0.5)));
  // Together the times are likelier than any one word.
  const auto drowned = allowed(rules, {at(0.1), 'a'}, {{'a', 2}});
  EXPECT_FALSE(may(drowned, 'a'));
  EXPECT_TRUE(may(drowned, at(0.5)));
}

TEST(WhisperRules, TokensBecomeSegments) {
  const TimestampTokens times(tokenizer());
  ASSERT_EQ(times.count, 51);
  const auto split = [&](const std::vector<TokenId>& said) { return split_by_times(said, times, 1.0); };
  TimedWindow two = split({at(0), 'a', at(0.4), at(0.5), 'b', 'c', at(0.9)});
  ASSERT_EQ(two.segments.size(), 2U);
  EXPECT_DOUBLE_EQ(two.segments[0].end, 0.4);
  EXPECT_DOUBLE_EQ(two.segments[1].start, 0.5);
  EXPECT_EQ(two.segments[1].tokens, (std::vector<TokenId>{'b', 'c'}));
  EXPECT_DOUBLE_EQ(two.consumed, 1.0);
  TimedWindow cut = split({at(0), 'a', at(0.4), at(0.4), 'b'});
  ASSERT_EQ(cut.segments.size(), 1U) << "what the window cuts off is heard again";
  EXPECT_DOUBLE_EQ(cut.consumed, 0.4);
  TimedWindow one = split({at(0.2), 'a', at(0.7)});
  ASSERT_EQ(one.segments.size(), 1U);
  EXPECT_DOUBLE_EQ(one.segments[0].start, 0.2);
  EXPECT_DOUBLE_EQ(one.segments[0].end, 0.7);
  TimedWindow plain = split({'a', 'b'});
  ASSERT_EQ(plain.segments.size(), 1U);
  EXPECT_DOUBLE_EQ(plain.segments[0].end, 1.0);
  EXPECT_TRUE(split({}).segments.empty());
  EXPECT_TRUE(split({at(0), at(0.5)}).segments.empty());
}

}  // namespace
}  // namespace convoy
