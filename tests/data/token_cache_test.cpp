#include "data/token_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "byte_tokenizer.h"
#include "temp_folder.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ByteTokenizer kTokenizer({"<eos>"});
const ByteTokenizer kWide({"<eos>"}, "<eos>", 100000);  // ids of 4 bytes

SourceOptions of(const std::string& path) {
  SourceOptions options;
  options.paths = {path};
  return options;
}

std::string decode(const TokenData& data, std::int64_t document) {
  std::vector<TokenId> ids(static_cast<std::size_t>(data.length(document)));
  data.copy(document, 0, data.length(document), ids.data());
  return kTokenizer.decode(ids, false);
}

std::vector<std::filesystem::path> cache_files(const TempFolder& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "cache")) {
    if (entry.path().extension() != ".lock") files.push_back(entry.path());
  }
  return files;
}

constexpr const char* kMixed =
    "{\"text\":\"abc\"}\n"
    "{\"prompt\":\"p\",\"completion\":\"c\"}\n"
    "{\"instruction\":\"i\",\"output\":\"o\"}\n";

TEST(Encode, TextAndPrompts) {
  const TempFolder folder;
  for (const ByteTokenizer* tokenizer : {&kTokenizer, &kWide}) {
    const auto data = tokenize_to_memory(of(folder.write("a.jsonl", kMixed)), SampleEncoder(*tokenizer, {}));
    EXPECT_EQ(data->id_bytes(), tokenizer == &kWide ? 4 : 2);
    ASSERT_EQ(data->documents(), 3);
    EXPECT_EQ(decode(*data, 0), "abc<eos>");
    EXPECT_THAT(data->trained(0), ElementsAre(TokenSpan{0, 4}));
    EXPECT_EQ(decode(*data, 1), "pc<eos>");
    EXPECT_THAT(data->trained(1), ElementsAre(TokenSpan{1, 3}));
    EXPECT_EQ(decode(*data, 2), "### Instruction:\ni\n\n### Response:\no<eos>");
    EXPECT_EQ(data->targets(0, 1, 4), 3);
    EXPECT_EQ(data->targets(0, 2, 3), 1);
    EXPECT_EQ(data->report().samples, 3);
    EXPECT_EQ(data->report().tokens, data->tokens());
    EXPECT_EQ(data->report().targets, 3 + 2 + 2);
  }
}

TEST(Encode, SpecialTokens) {
  const ByteTokenizer tokenizer({"<eos>", "<bos>"});
  Sample sample;
  sample.text = "a<eos>";
  const auto text = [&](const EncodeSettings& settings) {
    return tokenizer.decode(SampleEncoder(tokenizer, settings).encode(sample).ids, false) + "|" +
           std::to_string(SampleEncoder(tokenizer, settings).encode(sample).ids.size());
  };
  EXPECT_EQ(text({}), "<bos>a<eos><eos>|8");
  EncodeSettings plain;
  plain.add_special_tokens = false;
  plain.append_eos = false;
  EXPECT_EQ(text(plain), "a<eos>|6");
  plain.parse_special = true;
  EXPECT_EQ(text(plain), "a<eos>|2");
  sample.kind = Sample::Kind::kPrompt;
  sample.prompt = "p";
  sample.completion = "c";
  EXPECT_EQ(text({}), "<bos>pc<eos>|4");
}

TEST(Encode, WhatIsMissingIsNamed) {
  const ByteTokenizer no_end({}, "");
  Sample sample;
  sample.text = "a";
  EXPECT_THROW(SampleEncoder(no_end, {}).encode(sample), Error);
  sample.kind = Sample::Kind::kMessages;
  sample.where = "a.jsonl:3";
  try {
    SampleEncoder(kTokenizer, {}).encode(sample);
    FAIL();
  } catch (const Error& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("no chat format is set [a.jsonl:3]; set the chat format"));
  }
}

TEST(Tokenize, CountsWhatIsLeftOut) {
  const TempFolder folder;
  SourceOptions sources = of(folder.write("a.jsonl",
                                          "{\"text\":\"a\"}\n"
                                          "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}\n"
                                          "{\"messages\":[{\"role\":\"who\",\"content\":\"q\"}]}\n"
                                          "{\"text\":\"bc\"}\n"));
  EncodeSettings settings;
  settings.append_eos = false;
  settings.chat_format = ChatFormat::kChatMl;
  const ByteTokenizer tokenizer({"<|im_start|>", "<|im_end|>"});
  const SampleEncoder encoder(tokenizer, settings);
  try {
    tokenize_to_memory(sources, encoder);
    FAIL();
  } catch (const Error& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("without an assistant message to train on ["));
    EXPECT_THAT(failure.what(), HasSubstr("a.jsonl:2]"));
    EXPECT_THAT(failure.what(), HasSubstr("or set skip_bad_samples"));
  }
  sources.skip_bad_samples = true;
  const auto data = tokenize_to_memory(sources, encoder);
  EXPECT_EQ(data->documents(), 1);
  EXPECT_EQ(decode(*data, 0), "bc");
  EXPECT_EQ(data->report().skipped, (std::map<std::string, std::int64_t>{{"malformed", 2}, {"no target", 1}}));
  EXPECT_EQ(data->report().documents, 4);
}

// More samples than one chunk holds.
TEST(Tokenize, OrderIsKept) {
  const TempFolder folder;
  std::string content;
  for (int i = 0; i < 40000; ++i) content += std::to_string(i) + "\n";
  SourceOptions sources = of(folder.write("a.txt", content));
  sources.text_unit = TextUnit::kLine;
  const auto data = tokenize_to_memory(sources, SampleEncoder(kTokenizer, {}));
  ASSERT_EQ(data->documents(), 40000);
  for (int i = 0; i < 40000; i += 37) ASSERT_EQ(decode(*data, i), std::to_string(i) + "<eos>");
}

TEST(TokenCache, IsReusedAndKeyedByContentAndSettings) {
  const TempFolder folder;
  const auto cache = folder.path() / "cache";
  const SourceOptions sources = of(folder.write("a.jsonl", kMixed));
  const SampleEncoder encoder(kTokenizer, {});
  const auto first = load_or_tokenize(cache, sources, encoder);
  ASSERT_EQ(cache_files(folder).size(), 1u);
  const auto written = std::filesystem::last_write_time(cache_files(folder)[0]);
  const auto second = load_or_tokenize(cache, of(folder.write("moved.jsonl", kMixed)), encoder);
  EXPECT_EQ(std::filesystem::last_write_time(cache_files(folder)[0]), written);
  EXPECT_EQ(second->key(), first->key());
  EXPECT_EQ(second->report().text(), first->report().text());
  EXPECT_EQ(decode(*second, 2), decode(*first, 2));

  EncodeSettings settings;
  settings.append_eos = false;
  EXPECT_NE(token_key(sources, SampleEncoder(kTokenizer, settings)), first->key());
  EXPECT_NE(token_key(sources, SampleEncoder(ByteTokenizer({"<eos>", "<x>"}), {})), first->key());
  EXPECT_NE(token_key(of(folder.write("b.jsonl", std::string(kMixed) + "\n")), encoder), first->key());
  SourceOptions renamed = sources;
  renamed.fields.text = "body";
  EXPECT_NE(token_key(renamed, encoder), first->key());
}

// Every kind of damage is seen and mended, wherever it is.
TEST(TokenCache, DamageIsFoundAndMended) {
  set_log_level(LogLevel::kQuiet);
  const TempFolder folder;
  const auto cache = folder.path() / "cache";
  const SourceOptions sources = of(folder.write("a.jsonl", kMixed));
  const SampleEncoder encoder(kTokenizer, {});
  load_or_tokenize(cache, sources, encoder);
  const std::filesystem::path path = cache_files(folder)[0];
  const std::string whole = read_file(path);
  std::vector<std::string> damaged{"", whole.substr(0, 50), whole.substr(0, whole.size() - 1), whole + "x",
                                   whole.substr(8)};
  for (std::size_t at = 0; at < whole.size(); at += 19) {
    damaged.push_back(whole);
    damaged.back()[at] ^= 0x10;
  }
  for (const std::string& bytes : damaged) {
    EXPECT_THROW(TokenData::from_memory(bytes, "damaged"), Error);
    folder.write("cache/" + path.filename().string(), bytes);
    EXPECT_EQ(load_or_tokenize(cache, sources, encoder)->documents(), 3);
    ASSERT_EQ(read_file(path), whole);
  }
  set_log_level(LogLevel::kInfo);
}

TEST(TokenCache, ErrorsLeaveNothingBehindAndLeftoversGo) {
  const TempFolder folder;
  const auto cache = folder.path() / "cache";
  const SampleEncoder encoder(kTokenizer, {});
  EXPECT_THROW(load_or_tokenize(cache, of(folder.write("bad.jsonl", "{\"text\":\"a\"}\n{")), encoder), Error);
  EXPECT_TRUE(cache_files(folder).empty());
  const SourceOptions sources = of(folder.write("a.jsonl", kMixed));
  const std::string name = "tokens-" + hex64(token_key(sources, encoder)) + ".bin";
  folder.write("cache/" + name + ".tmp-host-1-0", "left by a killed process");
  load_or_tokenize(cache, sources, encoder);
  ASSERT_EQ(cache_files(folder).size(), 1u);
  EXPECT_EQ(cache_files(folder)[0].filename(), name);
  EXPECT_THROW(load_or_tokenize(folder.path() / "a.jsonl", sources, encoder), Error);
}

TEST(TokenCache, ConcurrentBuildersAgree) {
  set_log_level(LogLevel::kQuiet);
  const TempFolder folder;
  std::string content;
  for (int i = 0; i < 3000; ++i) content += "{\"text\":\"" + std::to_string(i) + "\"}\n";
  const SourceOptions sources = of(folder.write("a.jsonl", content));
  const SampleEncoder encoder(kTokenizer, {});
  std::vector<std::shared_ptr<const TokenData>> results(6);
  std::vector<std::thread> threads;
  for (auto& result : results)
    threads.emplace_back([&] { result = load_or_tokenize(folder.path() / "cache", sources, encoder); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    ASSERT_EQ(result->documents(), 3000);
    EXPECT_EQ(decode(*result, 2999), "2999<eos>");
  }
  EXPECT_EQ(cache_files(folder).size(), 1u);
  set_log_level(LogLevel::kInfo);
}

}  // namespace
}  // namespace convoy
