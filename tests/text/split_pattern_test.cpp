#include "text/split_pattern.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "text/pattern.h"
#include "text/unicode.h"

namespace convoy {
namespace {

constexpr SplitPattern kAll[] = {SplitPattern::kGpt2, SplitPattern::kCl100k, SplitPattern::kQwen2,
                                 SplitPattern::kO200k};

std::vector<std::string> pieces(SplitPattern pattern, std::string_view text) {
  std::vector<std::size_t> ends;
  split_by_pattern(pattern, text, ends);
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    out.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return out;
}

using Pieces = std::vector<std::string>;

TEST(SplitPattern, KnownPieces) {
  EXPECT_EQ(pieces(SplitPattern::kGpt2, "it's  DON'T 12a"), (Pieces{"it", "'s", " ", " DON", "'", "T", " 12", "a"}));
  EXPECT_EQ(pieces(SplitPattern::kCl100k, "it's DON'T 12345.x\n\n  y"),
            (Pieces{"it", "'s", " DON", "'T", " ", "123", "45", ".x", "\n\n", " ", " y"}));
  EXPECT_EQ(pieces(SplitPattern::kQwen2, "a12 \t\r\n b"), (Pieces{"a", "1", "2", " \t\r\n", " b"}));
  EXPECT_EQ(pieces(SplitPattern::kO200k, "HelloWORLDs it's ABC'S a/b\n//"),
            (Pieces{"Hello", "WORLDs", " it's", " ABC'S", " a", "/b", "\n", "//"}));
  EXPECT_EQ(pieces(SplitPattern::kCl100k, "'ſx"), (Pieces{"'ſ", "x"}));
  EXPECT_EQ(pieces(SplitPattern::kGpt2, ""), Pieces{});
}

TEST(SplitPattern, IsKnownByItsExactText) {
  for (const SplitPattern pattern : kAll) EXPECT_EQ(find_split_pattern(expression_of(pattern)), pattern);
  EXPECT_EQ(find_split_pattern("\\s+"), std::nullopt);
}

TEST(SplitPattern, InvalidBytesArePiecesLikeSymbols) {
  for (const SplitPattern pattern : kAll) {
    std::string text = "ab\xFF\xFE 12\xE4\xBD";
    for (const std::string& piece : pieces(pattern, text)) EXPECT_FALSE(piece.empty());
    text.assign(1, '\xC3');
    EXPECT_EQ(pieces(pattern, text), Pieces{text});
  }
}

// The characters for which PCRE2's Unicode version agrees with ours, by class.
std::vector<std::vector<std::string>> agreed_characters() {
  using namespace char_class;
  const std::pair<std::uint16_t, const char*> classes[] = {
      {kLetter, "\\p{L}"},
      {kNumber, "\\p{N}"},
      {kSpace, "\\s"},
      {kUpperOrMark, "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"},
      {kLowerOrMark, "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"},
  };
  std::vector<Pattern> patterns;
  for (const auto& entry : classes) patterns.push_back(Pattern::expression(entry.second));
  std::vector<std::vector<std::string>> out(32);
  for (char32_t code = 0; code < 0x20000; code += code < 0x3000 ? 1 : 7) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(text, code);
    const std::uint16_t bits = UnicodeTable::get()[code];
    bool agreed = true;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      std::vector<Span> matches;
      patterns[i].find_all(text, matches);
      agreed = agreed && matches.empty() == ((bits & classes[i].first) == 0);
    }
    if (agreed) out[static_cast<std::size_t>(UnicodeTable::category(bits))].push_back(text);
  }
  std::erase_if(out, [](const auto& category) { return category.empty(); });
  return out;
}

std::string random_text(RandomStream& random, const std::vector<std::vector<std::string>>& characters) {
  static const std::vector<std::string> special{"'s", "'T", "'re", "'VE",    "'m",   "'Ll",   "'d", "'",
                                                "'ſ", " ",  "  ",  "\n",     "\r\n", "\t",    "/",  ".",
                                                "1",  "a",  "B",   "\u0301", "中",   "\u3000"};
  std::string text;
  for (std::uint64_t n = random.below(24); n > 0; --n) {
    if (random.below(3) == 0) {
      const auto& category = characters[random.below(characters.size())];
      text += category[random.below(category.size())];
    } else {
      text += special[random.below(special.size())];
    }
  }
  return text;
}

TEST(SplitPattern, GivesThePiecesOfTheRegularExpression) {
  const auto characters = agreed_characters();
  ASSERT_GE(characters.size(), 25u);  // all categories but unassigned and surrogates
  RandomStream random(7, 1);
  for (const SplitPattern pattern : kAll) {
    const Pattern reference = Pattern::expression("(?:" + std::string(expression_of(pattern)) + ")");
    ASSERT_FALSE(reference.scanner());
    for (int round = 0; round < 60000; ++round) {
      const std::string text = random_text(random, characters);
      std::vector<Span> expected;
      reference.find_all(text, expected);
      std::vector<std::size_t> ends;
      split_by_pattern(pattern, text, ends);
      ASSERT_EQ(ends.size(), expected.size()) << text;
      for (std::size_t i = 0; i < ends.size(); ++i) ASSERT_EQ(ends[i], expected[i].end) << text;
    }
  }
}

TEST(SplitPattern, ContinuesWhereABatchEnds) {
  const std::string text = "The  learning rate's 12345 值\n\n  falls…";
  for (const SplitPattern pattern : kAll) {
    std::vector<std::size_t> all, batched;
    split_by_pattern(pattern, text, all);
    while (batched.empty() || batched.back() < text.size()) {
      split_by_pattern(pattern, text, batched.empty() ? 0 : batched.back(), 2, batched);
    }
    EXPECT_EQ(batched, all);
  }
}

TEST(Pattern, FindsMatchesAsOniguruma) {
  std::vector<Span> matches;
  Pattern::expression("^a|b$").find_all("a\nab\nb", matches);
  ASSERT_EQ(matches.size(), 4u);  // every line
  matches.clear();
  Pattern::expression("\\d*").find_all("a12b", matches);
  ASSERT_EQ(matches.size(), 3u);  // empty, 12, empty at the end; none right behind 12
  EXPECT_EQ(matches[1].begin, 1u);
  matches.clear();
  Pattern::expression("\\p{L}+").find_all(
      "ab\xFF\xC3"
      "cd",
      matches);
  ASSERT_EQ(matches.size(), 2u);
  EXPECT_EQ(matches[1].begin, 4u);
}

}  // namespace
}  // namespace convoy
