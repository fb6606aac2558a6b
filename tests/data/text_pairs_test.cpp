#include "data/text_pairs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "temp_folder.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

template <typename Read>
std::string error_of(const Read& read) {
  try {
    read();
  } catch (const Error& failure) {
    EXPECT_EQ(failure.status(), Status::kData);
    return failure.what();
  }
  return "no error";
}

TEST(TextPairs, LinesOfTwoFilesBelongTogether) {
  const TempFolder folder;
  const std::string guessed = folder.write("hyp.txt", "the cat sat mat\r\n\nlast");
  const std::string right = folder.write("ref.txt.gz", gzip("the cat sat on the mat\nnothing heard\nlast\n"));
  const std::vector<TextPair> pairs = read_text_pairs(guessed, right);
  ASSERT_EQ(pairs.size(), 3u);
  EXPECT_EQ(pairs[0].hypothesis, "the cat sat mat");
  EXPECT_EQ(pairs[1].hypothesis, "");
  EXPECT_EQ(pairs[1].reference, "nothing heard");
  EXPECT_EQ(pairs[1].where, guessed + ":2");
  const ErrorRates rates = error_rates(pairs, {});
  EXPECT_EQ(rates.words, (EditCounts{0, 0, 4, 9}));
  EXPECT_EQ(rates.wrong, 2);
  EXPECT_DOUBLE_EQ(rates.sentence_error_rate(), 2.0 / 3);
  const std::string fewer = folder.write("few.txt", "one\n");
  EXPECT_THAT(error_of([&] { read_text_pairs(fewer, right); }), HasSubstr("1 lines, and the references in "));
}

TEST(TextPairs, FieldsAreFoundOrNamed) {
  const TempFolder folder;
  const std::string usual = folder.write("a.jsonl", R"({"audio": "x.wav", "text": "ab", "pred_text": "ac"})"
                                                    "\n\n"
                                                    R"({"text": "你好", "pred_text": "你好吗"})");
  const std::vector<TextPair> pairs = read_text_pairs_json(usual);
  ASSERT_EQ(pairs.size(), 2u);
  EXPECT_EQ(pairs[1].where, usual + ":3");
  EXPECT_EQ(error_rates(pairs, {}).characters, (EditCounts{1, 1, 0, 4}));
  EXPECT_EQ(error_rates(pairs, {}).mixed, (EditCounts{1, 1, 0, 3}));
  // The one of the reference comes first where both could be meant.
  const std::string both = folder.write("b.jsonl", R"({"text": "x", "reference": "y", "hypothesis": "y"})");
  EXPECT_EQ(read_text_pairs_json(both)[0].reference, "y");
  const std::string own = folder.write("c.jsonl", R"({"gold": "x", "guess": "y"})");
  EXPECT_EQ(read_text_pairs_json(own, {"guess", "gold"})[0].hypothesis, "y");
  EXPECT_THAT(error_of([&] { read_text_pairs_json(own); }), HasSubstr("name it with --hypothesis_field"));
  EXPECT_THAT(error_of([&] { read_text_pairs_json(own, {"guess", "text"}); }), HasSubstr("no field 'text'"));
}

TEST(TextPairs, BadLinesAreNamed) {
  const TempFolder folder;
  const std::string good = R"({"reference": "a", "hypothesis": "b"})";
  for (const auto& [line, says] :
       {std::pair{R"({"reference": "a"})", "no field 'hypothesis'"},
        std::pair{R"({"reference": 1, "hypothesis": "b"})", "field 'reference' is not a string"},
        std::pair{"[1]", "not a JSON object"}, std::pair{R"({"reference": )", "bad.jsonl:2"}}) {
    const std::string file = folder.write("bad.jsonl", good + "\n" + line + "\n");
    const std::string error = error_of([&] { read_text_pairs_json(file); });
    EXPECT_THAT(error, HasSubstr(says));
    EXPECT_THAT(error, HasSubstr(file + ":2"));
  }
}

TEST(TextPairs, NormalisationComesFirst) {
  const std::vector<TextPair> pairs = {{"Hello, World!", "hello world", ""}};
  EXPECT_EQ(error_rates(pairs, TextNormalization::named("none")).words.errors(), 2);
  const ErrorRates rates = error_rates(pairs, TextNormalization::named("basic"));
  EXPECT_EQ(rates.words.errors(), 0);
  EXPECT_EQ(rates.wrong, 0);
}

TEST(TextPairs, ARateOverNothingIsNull) {
  const Json json = to_json(error_rates({TextPair{"", "x", ""}}, {}));
  EXPECT_TRUE(json["wer"].is_null());
  EXPECT_EQ(json["words"]["insertions"], 1);
}

}  // namespace
}  // namespace convoy
