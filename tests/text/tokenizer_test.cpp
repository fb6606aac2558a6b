// Loading: the forms of files, the configuration beside them, and what is wrong with a file.
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/random.h"
#include "text/unicode.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;
using testing::HasSubstr;

class TokenizerFiles : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, std::string_view content) { write_file_atomic(folder_ / name, content); }
  std::string load_error() {
    try {
      load_tokenizer(folder_);
    } catch (const Error& failure) {
      return failure.what();
    }
    return "";
  }
  const fs::path folder_ = fs::path(testing::TempDir()) /
                           ("tokenizer_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
};

// A byte-level tokenizer.json with a few merges, to be changed by the tests.
Json small_tokenizer() {
  Json vocab = Json::object();
  for (unsigned b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    vocab[bytes_to_letters({&byte, 1})] = b;
  }
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  return {{"version", "1.0"},
          {"added_tokens", Json::array({{{"id", 300}, {"content", "<eos>"}, {"special", true}}})},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab c"}}}}};
}

TEST_F(TokenizerFiles, HolesAndConfigurationOfATokenizerJson) {
  Json json = small_tokenizer();
  write("tokenizer.json", json.dump());
  write("tokenizer_config.json", R"({"eos_token": {"content": "<eos>"}, "bos_token": "abc",
      "added_tokens_decoder": {"400": {"content": "<extra>", "special": true}, "256": {"content": "<clash>"}}})");
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer->vocab_size(), 401);
  EXPECT_EQ(tokenizer->eos_id(), 300);
  EXPECT_EQ(tokenizer->bos_id(), 257);
  EXPECT_TRUE(tokenizer->is_special(400));
  EXPECT_TRUE(tokenizer->is_special(257));  // it plays a role now
  EXPECT_EQ(tokenizer->id_to_token(299), std::nullopt);
  EXPECT_EQ(tokenizer->token_to_id("<clash>"), std::nullopt);
  EXPECT_EQ(tokenizer->encode("abab<extra>"), (Ids{256, 256, 400}));
  for (const TokenId id : {-1, 299, 401, 2147483647}) {
    EXPECT_THROW((void)tokenizer->decode({id}, false), Error) << id;
    EXPECT_THROW((void)tokenizer->token_bytes(id), Error) << id;
  }
  try {
    (void)tokenizer->decode({97, 299}, false);
    FAIL();
  } catch (const Error& failure) {
    EXPECT_EQ(failure.status(), Status::kData);
    EXPECT_THAT(failure.what(), HasSubstr("token id 299 is not in the vocabulary (its ids end at 400)"));
  }
  // The fingerprint is of what decides about ids.
  const std::uint64_t before = tokenizer->fingerprint();
  EXPECT_EQ(load_tokenizer(folder_)->fingerprint(), before);
  fs::remove(folder_ / "tokenizer_config.json");
  EXPECT_NE(load_tokenizer(folder_)->fingerprint(), before);
  EXPECT_EQ(load_tokenizer(folder_ / "tokenizer.json")->eos_id(), std::nullopt);
  write("generation_config.json", R"({"eos_token_id": [300, 257], "bos_token_id": -1})");
  EXPECT_EQ(load_tokenizer(folder_)->eos_id(), 300);
  EXPECT_EQ(load_tokenizer(folder_)->bos_id(), std::nullopt);
  write("special_tokens_map.json", R"({"eos_token": "abc"})");
  EXPECT_EQ(load_tokenizer(folder_)->eos_id(), 257);
}

TEST_F(TokenizerFiles, AddedTokensWithTheirFlags) {
  Json json = small_tokenizer();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] = Json::array({{{"id", 300}, {"content", "<a>"}, {"lstrip", true}, {"special", true}},
                                      {{"id", 301}, {"content", "<b>"}, {"rstrip", true}, {"normalized", false}},
                                      {{"id", 302}, {"content", "Word"}, {"single_word", true}, {"normalized", true}},
                                      {{"id", 303}, {"content", "<a><b>"}, {"normalized", false}}});
  write("tokenizer.json", json.dump());
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer->encode("X \t<a> y"), (Ids{'x', 300, ' ', 'y'}));
  EXPECT_EQ(tokenizer->encode("<b> \n"), Ids{301});
  EXPECT_EQ(tokenizer->encode("<a><b>"), Ids{303});  // the longest
  EXPECT_EQ(tokenizer->encode("WORD"), Ids{302});
  EXPECT_EQ(tokenizer->encode("(word)").size(), 3u);
  EXPECT_EQ(tokenizer->encode("words").size(), 5u);
  EXPECT_EQ(tokenizer->encode("<a>", {.parse_special = false}).size(), 3u);
  EXPECT_EQ(tokenizer->encode("<b>", {.parse_special = false}), Ids{301});  // added, but not special
}

TEST_F(TokenizerFiles, WhatIsNotSupportedIsNamed) {
  const auto error_of = [&](const std::function<void(Json&)>& change) {
    Json json = small_tokenizer();
    change(json);
    write("tokenizer.json", json.dump());
    const std::string error = load_error();
    EXPECT_THAT(error, HasSubstr("tokenizer.json"));
    return error;
  };
  const Json precompiled{{"type", "Precompiled"}};
  EXPECT_THAT(error_of([&](Json& j) { j["normalizer"] = precompiled; }),
              HasSubstr("normalizer 'Precompiled' is not supported"));
  EXPECT_THAT(error_of([&](Json& j) {
                j["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
              }),
              HasSubstr("pre_tokenizer 'UnicodeScripts' is not supported"));
  EXPECT_THAT(error_of([&](Json& j) { j["pre_tokenizer"]["trim"] = 1; }),
              HasSubstr("pre_tokenizer 'ByteLevel' has an option 'trim' that is not supported"));
  EXPECT_THAT(error_of([&](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }), HasSubstr("decoder 'WordPiece'"));
  EXPECT_THAT(error_of([&](Json& j) { j["post_processor"] = {{"type", "X"}}; }), HasSubstr("post_processor 'X'"));
  EXPECT_THAT(error_of([&](Json& j) { j["model"]["type"] = "Unigram"; }),
              HasSubstr("model 'Unigram' is not supported"));
  EXPECT_THAT(error_of([&](Json& j) { j["model"]["dropout"] = 0.1; }), HasSubstr("'dropout' is not supported"));
  EXPECT_THAT(error_of([&](Json& j) { j["model"]["merges"].push_back("a z z"); }), HasSubstr("merge 'a z z'"));
  EXPECT_THAT(error_of([&](Json& j) {
                j["model"]["merges"].push_back({"a", "zz"});
              }),
              HasSubstr("merge 'a zz' needs the token 'zz', which the vocab lacks"));
  EXPECT_THAT(error_of([&](Json& j) {
                j["model"]["merges"].push_back({"a", "d"});
              }),
              HasSubstr("needs the token 'ad'"));
  EXPECT_THAT(error_of([&](Json& j) { j["model"]["merges"].push_back(3); }), HasSubstr("an entry of 'merges'"));
  EXPECT_THAT(error_of([&](Json& j) { j["model"]["vocab"]["new"] = 256; }),
              HasSubstr("tokens 'ab' and 'new' have the same id 256"));
  EXPECT_THAT(error_of([&](Json& j) { j["model"]["vocab"]["new"] = -1; }), HasSubstr("'new' has the id -1"));
  EXPECT_THAT(error_of([&](Json& j) { j["model"]["vocab"]["new"] = 1ll << 40; }), HasSubstr("outside 0…"));
  EXPECT_THAT(error_of([&](Json& j) { j["model"]["vocab"]["new"] = 1.5; }), HasSubstr("not an integer"));
  EXPECT_THAT(error_of([&](Json& j) { j["added_tokens"][0]["id"] = 256; }),
              HasSubstr("has the id 256 of the token 'ab'"));
  EXPECT_THAT(error_of([&](Json& j) { j["added_tokens"][0]["content"] = "ab"; }), HasSubstr("but 256 in the model's"));
  EXPECT_THAT(error_of([&](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }), HasSubstr("same id 300"));
  EXPECT_THAT(error_of([&](Json& j) { j["version"] = "2.0"; }), HasSubstr("version '2.0'"));
  EXPECT_THAT(error_of([&](Json& j) { j["surprise"] = 1; }), HasSubstr("section 'surprise'"));
  EXPECT_THAT(error_of([&](Json& j) { j.erase("model"); }), HasSubstr("there is no 'model'"));
  EXPECT_THAT(error_of([&](Json& j) {
                j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
              }),
              HasSubstr("the regular expression '(a' is not valid: missing closing parenthesis at byte 2"));
  EXPECT_THAT(error_of([&](Json& j) {
                Json nested = {{"type", "NFC"}};
                for (int i = 0; i < 50; ++i) nested = {{"type", "Sequence"}, {"normalizers", Json::array({nested})}};
                j["normalizer"] = nested;
              }),
              HasSubstr("nests deeper than"));
  EXPECT_THAT(error_of([&](Json& j) {
                j["post_processor"] = {{"type", "TemplateProcessing"},
                                       {"single", Json::array({{{"SpecialToken", {{"id", "<x>"}}}}})},
                                       {"special_tokens", Json::object()}};
              }),
              HasSubstr("uses a special token '<x>'"));
  EXPECT_THAT(error_of([&](Json& j) {
                j["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"x", 999}}, {"cls", {"y", 1}}};
              }),
              HasSubstr("uses the id 999, which has no token"));
}

TEST_F(TokenizerFiles, TextThatOnlyGrowsIsRefused) {
  Json json = small_tokenizer();
  Json steps = Json::array();
  const Json grow = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(50, 'a')}};
  for (int i = 0; i < 20; ++i) steps.push_back(grow);
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  write("tokenizer.json", json.dump());
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer->encode("b").size(), 1u);
  EXPECT_THROW(tokenizer->encode("a"), Error);
}

TEST_F(TokenizerFiles, DamagedJsonSaysWhere) {
  const std::string whole = small_tokenizer().dump(1);
  write("tokenizer.json", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(load_error(), HasSubstr("not valid JSON at line "));
  for (std::size_t cut = 1; cut < whole.size(); cut += whole.size() / 50) {
    write("tokenizer.json", whole.substr(0, cut));
    EXPECT_NE(load_error(), "") << cut;
  }
  write("tokenizer.json", "{}");
  EXPECT_THAT(load_error(), HasSubstr("there is no 'model'"));
  write("tokenizer.json", "");
  EXPECT_NE(load_error(), "");
}

TEST_F(TokenizerFiles, AFolderWithoutATokenizerSaysWhatItNeeds) {
  EXPECT_THAT(load_error(), HasSubstr("it needs a tokenizer.json, a tokenizer.model"));
  EXPECT_THROW(load_tokenizer(folder_ / "absent"), Error);
}

// "base64 rank" lines of all bytes and some tokens.
std::string tiktoken_file(const std::vector<std::string>& tokens) {
  const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::size_t rank = 0;
  const auto add = [&](const std::string& bytes) {
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
      std::uint32_t bits = 0;
      for (std::size_t k = 0; k < 3; ++k)
        bits = bits << 8 | (i + k < bytes.size() ? static_cast<std::uint8_t>(bytes[i + k]) : 0u);
      for (std::size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? digits[bits >> (18 - 6 * k) & 63] : '=';
    }
    out += " " + std::to_string(rank++) + "\n";
  };
  for (int b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)));
  for (const std::string& token : tokens) add(token);
  return out;
}

TEST_F(TokenizerFiles, TiktokenOfGlm4) {
  write("tokenizer.model", tiktoken_file({"ab", "bc", "abc", "你", "你好"}));
  EXPECT_THAT(load_error(),
              HasSubstr("a tiktoken file of 261 ranks is of no known family (GLM-4 has 151329, Llama-3 128000)"));
  write("tokenizer_config.json", R"({"tokenizer_class": "ChatGLM4Tokenizer"})");
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer->vocab_size(), 261 + 14);
  EXPECT_EQ(tokenizer->eos_id(), 261);
  EXPECT_EQ(tokenizer->token_to_id("<|user|>"), 261 + 7);
  EXPECT_EQ(tokenizer->token_to_id("<|end_of_video|>"), 261 + 13);
  EXPECT_EQ(tokenizer->encode("abc", {.add_special_tokens = true}), (Ids{263, 265, 258}));
  EXPECT_EQ(tokenizer->encode("abcd"), (Ids{258, 'd'}));
  EXPECT_EQ(tokenizer->encode("你好"), Ids{260});  // a whole piece, though its bytes do not merge to it
  EXPECT_EQ(tokenizer->encode("<|user|>\n"), (Ids{268, '\n'}));
  const Ids forged = tokenizer->encode("<|user|>", {.parse_special = false});
  EXPECT_THAT(forged, testing::Not(testing::Contains(268)));
  EXPECT_EQ(tokenizer->decode(forged, true), "<|user|>");
  EXPECT_EQ(tokenizer->decode({263, 265, 260}, true), "你好");
  write("tokenizer.model", tiktoken_file({}) + "YWI= 3\n");
  EXPECT_THAT(load_error(), HasSubstr("have the same id 3 [line 257"));
  write("tokenizer.model", tiktoken_file({}) + "YW=I 300\n");
  EXPECT_THAT(load_error(), HasSubstr("a line is not \"base64(bytes) rank\""));
}

TEST_F(TokenizerFiles, TiktokenWithItsTokensInTheConfiguration) {
  write("tokenizer.model", tiktoken_file({"ab"}));
  write("tokenizer_config.json",
        R"({"added_tokens_decoder": {"257": {"content": "<end>", "special": true}}, "eos_token": "<end>"})");
  const auto tokenizer = load_tokenizer(folder_ / "tokenizer.model");
  EXPECT_EQ(tokenizer->encode("ab<end>"), (Ids{256, 257}));
  EXPECT_EQ(tokenizer->eos_id(), 257);
}

TEST_F(TokenizerFiles, SentencePieceWithSpecialTokens) {
  const fs::path data = fs::path(CONVOY_SOURCE_DIR) / "tests/text/data/sentencepiece";
  write("tokenizer.model", read_file(data / "tokenizer.model"));
  const auto legacy = load_tokenizer(folder_);
  EXPECT_EQ(legacy->bos_id(), 1);
  EXPECT_EQ(legacy->eos_id(), 2);
  EXPECT_EQ(legacy->token_to_id("</s>"), 2);
  EXPECT_TRUE(legacy->is_special(0));
  const Ids with_bos = legacy->encode("rate", {.add_special_tokens = true});
  EXPECT_EQ(with_bos.front(), 1);
  EXPECT_EQ(legacy->decode(with_bos, true), "rate");
  EXPECT_EQ(legacy->encode("</s>"), Ids{2});
  EXPECT_THAT(legacy->encode("</s>", {.parse_special = false}), testing::Not(testing::Contains(2)));
  EXPECT_EQ(legacy->decode(legacy->encode("\xFF"), false), "\uFFFD");
  EXPECT_THROW((void)legacy->decode({440}, false), Error);
  write("tokenizer_config.json", R"({"legacy": false, "add_eos_token": true, "add_bos_token": false,
      "added_tokens_decoder": {"440": {"content": "<|im_end|>", "special": true}, "7": {"content": "<clash>"}}})");
  const auto modern = load_tokenizer(folder_);
  EXPECT_EQ(modern->vocab_size(), 441);
  EXPECT_EQ(modern->token_to_id("<clash>"), std::nullopt);
  EXPECT_EQ(modern->encode("a", {.add_special_tokens = true}).back(), 2);
  // After a special token only the old way puts a space before the text.
  EXPECT_EQ(modern->decode(modern->encode("<|im_end|>rate"), false), "<|im_end|>rate");
  EXPECT_EQ(legacy->decode(legacy->encode("</s>rate"), false), "</s> rate");
  EXPECT_NE(modern->fingerprint(), legacy->fingerprint());
  write("tokenizer.model", read_file(data / "tokenizer.model").substr(0, 3000));
  EXPECT_THAT(load_error(), HasSubstr("not a SentencePiece model"));
}

TEST_F(TokenizerFiles, VocabularyWithMerges) {
  const Json model = small_tokenizer()["model"];
  write("vocab.json", model["vocab"].dump());
  write("merges.txt", "#version: 0.2\na b\nab c\n");
  EXPECT_THAT(load_error(), HasSubstr("tokenizer_class '' is not supported"));
  write("config.json", R"({"model_type": "gpt2"})");
  write("added_tokens.json", R"({"<|end|>": 258})");
  write("special_tokens_map.json", R"({"eos_token": "<|end|>"})");
  const auto gpt2 = load_tokenizer(folder_);
  EXPECT_EQ(gpt2->encode("abc<|end|>"), (Ids{257, 258}));
  EXPECT_TRUE(gpt2->is_special(258));
  EXPECT_EQ(gpt2->encode("12").size(), 2u);
  write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast"})");
  EXPECT_EQ(load_tokenizer(folder_)->encode("e\u0301"), load_tokenizer(folder_)->encode("\u00E9"));
  write("merges.txt", "a b\na\n");
  EXPECT_THAT(load_error(), HasSubstr("merge 'a' is not two tokens with a space between [line 2"));
  write("tokenizer_config.json", R"({"tokenizer_class": 5, "eos_token": 7})");
  EXPECT_THAT(load_error(), HasSubstr("'eos_token' must be a token or null"));
}

TEST_F(TokenizerFiles, Gpt1) {
  write("encoder_bpe_40000.json", R"({"<unk>": 0, "l": 1, "o": 2, "w</w>": 3, "lo": 4, "low</w>": 5, ".</w>": 6})");
  write("vocab_40000.bpe", "#version: 0.2\nl o\nlo w</w>\n");
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer->encode("Low lo\u0301w. x"), (Ids{5, 5, 6, 0}));
  EXPECT_EQ(tokenizer->decode({5, 5, 6}, false), "low low .");
}

TEST_F(TokenizerFiles, AnyTextIsEncodedFromManyThreads) {
  write("tokenizer.json", small_tokenizer().dump());
  const auto tokenizer = load_tokenizer(folder_);
  std::vector<std::string> texts{std::string("\0a\0", 3), "", "\xFF\xFE\x80", std::string(300, '\xE4'),
                                 "ab\xE4\xB8\xAD"};
  RandomStream random(11, 0);
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (std::uint64_t n = random.below(60); n > 0; --n) text += static_cast<char>(random.below(256));
    texts.push_back(text);
  }
  std::vector<Ids> expected;
  for (const std::string& text : texts) {
    expected.push_back(tokenizer->encode(text));
    EXPECT_EQ(tokenizer->decode(expected.back(), false), to_valid_utf8(text));
    std::string bytes;
    for (const TokenId id : expected.back()) bytes += tokenizer->token_bytes(id);
    EXPECT_EQ(bytes, text);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(tokenizer->encode(texts[i]), expected[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TokenizerFiles, StreamingHoldsBackWhatIsNotWhole) {
  write("tokenizer.json", small_tokenizer().dump());
  const auto tokenizer = load_tokenizer(folder_);
  StreamingDecoder stream(*tokenizer, true);
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push(300), "");  // special, skipped
  EXPECT_EQ(stream.push(0xBD), "");
  EXPECT_EQ(stream.push(0xA0), "你");
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push('a'), "\uFFFDa");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_THROW(stream.push(299), Error);
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.push('b'), "b");  // ready for the next text
  EXPECT_EQ(stream.finish(), "");
  RandomStream random(2, 0);
  for (int round = 0; round < 300; ++round) {
    Ids ids;
    for (std::uint64_t n = random.below(12); n > 0; --n) {
      ids.push_back(static_cast<TokenId>(random.below(2) == 0 ? 0x80 + random.below(128) : random.below(258)));
    }
    StreamingDecoder whole(*tokenizer, false);
    std::string text;
    for (const TokenId id : ids) text += whole.push(id);
    EXPECT_EQ(text + whole.finish(), tokenizer->decode(ids, false));
  }
}

}  // namespace
}  // namespace convoy
