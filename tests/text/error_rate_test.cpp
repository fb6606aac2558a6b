#include "text/error_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/random.h"

namespace convoy {
namespace {

TEST(ErrorRate, GoldenValues) {
  const Json cases = read_json(std::filesystem::path(CONVOY_TEST_DATA) / "error_rates.json");
  ASSERT_GE(cases.size(), 4U);
  for (const Json& item : cases) {
    const auto reference = item["ref"].get<std::string>(), hypothesis = item["hyp"].get<std::string>();
    const EditCounts words = count_edits(reference, hypothesis, ErrorUnit::kWord);
    const EditCounts characters = count_edits(reference, hypothesis, ErrorUnit::kCharacter);
    EXPECT_EQ(words.errors(), item["word"][0]) << reference;
    EXPECT_EQ(words.reference, item["word"][1]) << reference;
    EXPECT_EQ(characters.errors(), item["char"][0]) << reference;
    EXPECT_EQ(characters.reference, item["char"][1]) << reference;
  }
}

TEST(ErrorRate, CountsKindsOfEdits) {
  EXPECT_EQ(count_edits("a b c d", "a x c d e", ErrorUnit::kWord), (EditCounts{1, 1, 0, 4}));
  EXPECT_EQ(count_edits("a b c d", "b c", ErrorUnit::kWord), (EditCounts{0, 0, 2, 4}));
  EXPECT_EQ(count_edits("", "b c", ErrorUnit::kWord), (EditCounts{0, 2, 0, 0}));
  EXPECT_EQ(count_edits(" a\tb\u3000c ", "a b c", ErrorUnit::kWord), (EditCounts{0, 0, 0, 3}));
  // A transposition is two edits, unlike in spelling suggestions.
  EXPECT_EQ(count_edits("ab", "ba", ErrorUnit::kCharacter).errors(), 2);
}

TEST(ErrorRate, SumsAndRates) {
  EditCounts sum = count_edits("a b", "a", ErrorUnit::kWord);
  sum += count_edits("c d", "c d", ErrorUnit::kWord);
  EXPECT_EQ(sum.rate(), 0.25);
  EXPECT_EQ(EditCounts{}.rate(), 0);
  EXPECT_TRUE(std::isinf(count_edits("", "a", ErrorUnit::kWord).rate()));
  EXPECT_EQ(count_edits("a", "b c d", ErrorUnit::kWord).rate(), 3);
}

TEST(ErrorRate, MixedUnits) {
  EXPECT_EQ(error_units("我用 GPU训练 two models", ErrorUnit::kMixed),
            (std::vector<std::u32string>{U"我", U"用", U"GPU", U"训", U"练", U"two", U"models"}));
  EXPECT_EQ(count_edits("我用 GPU", "我有 GPUs 了", ErrorUnit::kMixed), (EditCounts{2, 1, 0, 3}));
}

// The least number of edits by trying them all.
std::int64_t plain_distance(std::u32string_view a, std::u32string_view b) {
  if (a.empty() || b.empty()) return static_cast<std::int64_t>(a.size() + b.size());
  const std::int64_t same = plain_distance(a.substr(1), b.substr(1)) + (a[0] == b[0] ? 0 : 1);
  return std::min({same, plain_distance(a.substr(1), b) + 1, plain_distance(a, b.substr(1)) + 1});
}

TEST(ErrorRate, IsTheLeastNumberOfEdits) {
  RandomStream random(1, 2);
  for (int i = 0; i < 300; ++i) {
    std::u32string a, b;
    for (std::uint64_t n = random.below(7); n > 0; --n) a += static_cast<char32_t>('a' + random.below(3));
    for (std::uint64_t n = random.below(7); n > 0; --n) b += static_cast<char32_t>('a' + random.below(3));
    const std::string x(a.begin(), a.end()), y(b.begin(), b.end());
    const EditCounts counts = count_edits(x, y, ErrorUnit::kCharacter);
    EXPECT_EQ(counts.errors(), plain_distance(a, b)) << x << " / " << y;
    EXPECT_EQ(counts.insertions - counts.deletions, static_cast<std::int64_t>(y.size()) - counts.reference);
  }
}

std::string basic(std::string_view text) {
  return normalize_text(text, TextNormalization::named("basic"));
}
std::string chinese(std::string_view text) {
  return normalize_text(text, TextNormalization::named("chinese"));
}

TEST(Normalization, Basic) {
  EXPECT_EQ(basic("Hello, World!"), "hello world");
  EXPECT_EQ(basic("[noise] He <unk> said (softly) YES."), "he said yes");
  EXPECT_EQ(basic("It's 3,5 €"), "it s 3 5");
  EXPECT_EQ(basic("ＡＢＣ　１２３"), "abc 123");
  EXPECT_EQ(basic("ÄÖÜ straße"), "äöü straße");
  EXPECT_EQ(basic("  \t\n "), "");
  EXPECT_EQ(basic("a [b"), "a b");
  EXPECT_EQ(basic("f() (x)"), "f");
}

TEST(Normalization, WordsKeepApostrophes) {
  const TextNormalization words = TextNormalization::named("words");
  EXPECT_EQ(normalize_text("Don’t 'quote' THE dogs' (bowl)", words), "don't quote the dogs bowl");
}

TEST(Normalization, Chinese) {
  EXPECT_EQ(chinese("你好，世界！ 今天 天气。"), "你好世界今天天气");
  EXPECT_EQ(chinese("ＧＰＵ 有 ８ 块"), "gpu有8块");
  EXPECT_EQ(count_edits(chinese("你好， 世界。"), chinese("你好世界"), ErrorUnit::kCharacter).errors(), 0);
}

TEST(Normalization, NoneLeavesTextAlone) {
  EXPECT_EQ(normalize_text(" A,  b ", TextNormalization::named("none")), " A,  b ");
}

TEST(Normalization, InvalidBytesDoNoHarm) {
  EXPECT_EQ(basic("a\xff\xfe b"), "a b");  // U+FFFD is a symbol
  EXPECT_EQ(count_edits("\xff", "\xfe", ErrorUnit::kCharacter).errors(), 0);
}

TEST(Normalization, UnknownNamesAreRefused) {
  try {
    TextNormalization::named("chinse");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("did you mean 'chinese'"));
  }
  EXPECT_THROW(parse_error_unit("letter"), Error);
  EXPECT_EQ(parse_error_unit("mixed"), ErrorUnit::kMixed);
}

}  // namespace
}  // namespace convoy
