#include "data/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "temp_folder.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::vector<Sample> read_all(const SourceOptions& options, DataReport& report) {
  SampleReader reader(options, report);
  std::vector<Sample> samples;
  for (Sample sample; reader.next(sample);) samples.push_back(sample);
  return samples;
}

std::vector<std::string> texts(const SourceOptions& options) {
  DataReport report;
  std::vector<std::string> all;
  for (const Sample& sample : read_all(options, report)) all.push_back(sample.text);
  return all;
}

SourceOptions of(std::vector<std::string> paths) {
  SourceOptions options;
  options.paths = std::move(paths);
  return options;
}

// Records of a text in memory, without a file.
std::vector<Sample> records(const std::string& content, SourceFormat format, const SourceOptions& options = {}) {
  const auto reader = open_records(memory_stream(content), "mem", format, options);
  std::vector<Sample> samples;
  for (Sample sample; reader->next(sample); sample = {}) samples.push_back(sample);
  return samples;
}

std::string error_of(const std::string& content, SourceFormat format, const SourceOptions& options = {}) {
  try {
    records(content, format, options);
  } catch (const Error& failure) {
    return failure.what();
  }
  return "no error";
}

TEST(JsonLines, AllKindsOfRecords) {
  const auto samples = records(
      "{\"text\": \"a\\u00e9\\n\"}\r\n"
      "\n"
      "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\","
      "\"text\":\"r\"},{\"type\":\"text\",\"text\":\"s\"}],\"weight\":0}]}\n"
      "{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"gpt\",\"value\":\"r\"}],\"system\":\"S\"}\n"
      "{\"instruction\":\"i\",\"input\":\"n\",\"output\":\"o\"}\n"
      "{\"prompt\":\"p\",\"completion\":\"c\",\"id\":17}",
      SourceFormat::kJsonLines);
  ASSERT_EQ(samples.size(), 5u);
  EXPECT_EQ(samples[0].text, "a\u00e9\n");
  EXPECT_EQ(samples[0].where, "mem:1");
  EXPECT_THAT(samples[1].messages,
              ElementsAre(ChatMessage{"user", "q", "", true}, ChatMessage{"assistant", "rs", "", false}));
  EXPECT_EQ(samples[1].where, "mem:3");
  EXPECT_THAT(samples[2].messages,
              ElementsAre(ChatMessage{"system", "S", "", false}, ChatMessage{"user", "q", "", true},
                          ChatMessage{"assistant", "r", "", true}));
  EXPECT_TRUE(samples[3].instruction);
  EXPECT_THAT(samples[3].messages,
              ElementsAre(ChatMessage{"user", "i\n\nn", "", false}, ChatMessage{"assistant", "o", "", true}));
  EXPECT_EQ(samples[3].prompt, "### Instruction:\ni\n\n### Input:\nn\n\n### Response:\n");
  EXPECT_EQ(samples[3].completion, "o");
  EXPECT_EQ(samples[4].kind, Sample::Kind::kPrompt);
  EXPECT_EQ(samples[4].prompt, "p");
  EXPECT_EQ(samples[4].completion, "c");
}

TEST(Source, KeepsToolsCallsAndReasoning) {
  const auto samples = records(
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"a": 1}],"reasoning_content":"r","name":""},{"role":"tool","content":"t","tool_call_id":"x"}],"tools":[{"n": 2}]})"
      "\n"
      R"({"conversations":[{"from":"human","value":"q"},{"from":"function_call","value":"c"},{"from":"observation","value":"o"},{"from":"gpt","value":"r"}],"tools":"[{\"n\": 2}]"})",
      SourceFormat::kJsonLines);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].tools, R"([{"n":2}])");
  EXPECT_THAT(samples[0].messages, ElementsAre(ChatMessage{"user", "q", "", true},
                                               ChatMessage{"assistant", "", "", true,
                                                           R"({"tool_calls": [{"a":1}], "reasoning_content": "r"})"},
                                               ChatMessage{"tool", "t", "", true, R"({"tool_call_id": "x"})"}));
  EXPECT_EQ(samples[1].tools, R"([{"n": 2}])");
  EXPECT_THAT(samples[1].messages,
              ElementsAre(ChatMessage{"user", "q", "", true}, ChatMessage{"assistant", "c", "", true},
                          ChatMessage{"tool", "o", "", true}, ChatMessage{"assistant", "r", "", true}));
}

TEST(JsonLines, FieldNamesAndKindCanBeChosen) {
  SourceOptions options;
  options.fields.text = "body";
  EXPECT_EQ(records("{\"body\":\"x\"}", SourceFormat::kJsonLines, options)[0].text, "x");
  options = {};
  options.kind = SampleKind::kText;
  EXPECT_EQ(records("{\"text\":\"x\",\"messages\":1}", SourceFormat::kJsonLines, options)[0].text, "x");
}

TEST(JsonLines, ErrorsSayWhereAndWhy) {
  const auto error = [](const std::string& line) {
    return error_of("{\"text\":\"ok\"}\n" + line, SourceFormat::kJsonLines);
  };
  EXPECT_THAT(error("{\"text\": \"a\""), HasSubstr("not a JSON object: "));
  EXPECT_THAT(error("{\"text\": \"a\""), HasSubstr("[mem:2]"));
  EXPECT_THAT(error("{\"text\": \"a\"} x"), HasSubstr("not a JSON object: "));
  EXPECT_THAT(error("{\"text\": \"a\", \"n\": tru}"), HasSubstr("not a JSON object: "));
  EXPECT_THAT(error("[1]"), HasSubstr("the line is a list, not an object [mem:2]"));
  EXPECT_THAT(error("{\"text\": 3}"), HasSubstr("field 'text' is a number, not a string [mem:2]"));
  EXPECT_THAT(error("{\"txt\": \"a\"}"),
              HasSubstr("none of the known fields is present: it has 'txt' [mem:2]; name the fields"));
  EXPECT_THAT(error("{\"messages\": {}}"), HasSubstr("field 'messages' is an object, not a list"));
  EXPECT_THAT(error("{\"messages\": [{\"role\":\"user\"}]}"),
              HasSubstr("message 1: no field 'content' [field 'messages', mem:2]"));
  EXPECT_THAT(error("{\"messages\": [{\"role\":\"user\",\"content\":null}]}"),
              HasSubstr("field 'content' is null, not a string"));
  EXPECT_THAT(error("{\"messages\": [], \"tools\": \"x\"}"), HasSubstr("holds no JSON list"));
  EXPECT_THAT(error("{\"messages\": [], \"tools\": 3}"), HasSubstr("field 'tools' is a number, not a list"));
  EXPECT_THAT(error("{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}"), HasSubstr("not there yet"));
  EXPECT_THAT(error("{\"messages\": [{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}"),
              HasSubstr("a part of 'content' is of type 'image_url'"));
  EXPECT_THAT(error("{\"messages\": [{\"role\":\"user\",\"content\":\"\",\"weight\":2}]}"),
              HasSubstr("field 'weight' is neither 0 nor 1"));
  EXPECT_THAT(error("{\"text\": \"\xff\"}"),
              HasSubstr("not valid UTF-8: byte 11 of the line is 0xff [mem:2]; convert"));
  EXPECT_THAT(error("{\"text\": \"\\ud800\"}"), HasSubstr("not a JSON object"));
}

TEST(JsonArray, RecordsAndErrors) {
  const auto samples = records("\xef\xbb\xbf [ {\"text\":\"a\"},\n {\"text\":\"b\"} ]\n", SourceFormat::kJsonArray);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[1].text, "b");
  EXPECT_EQ(samples[1].where, "mem, record 2");
  EXPECT_THAT(error_of("[{\"text\":\"a\"},3]", SourceFormat::kJsonArray),
              HasSubstr("the record is a number, not an object [mem, record 2]"));
  EXPECT_THAT(error_of("[{\"text\":\"a\"}", SourceFormat::kJsonArray), HasSubstr("mem is not a JSON array of records"));
  EXPECT_THAT(error_of("{\"text\":\"a\"}", SourceFormat::kJsonArray), HasSubstr("name its format: jsonl"));
  EXPECT_TRUE(records("[]", SourceFormat::kJsonArray).empty());
}

TEST(Csv, QuotingAfterRfc4180) {
  const auto samples =
      records("id,text\r\n1,\"a \"\"b\"\", c\"\r\n2,\"two\r\nlines\"\r\n\r\n3,plain\r\n4,\"\"\"\"", SourceFormat::kCsv);
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[0].text, "a \"b\", c");
  EXPECT_EQ(samples[1].text, "two\r\nlines");
  EXPECT_EQ(samples[1].where, "mem:3");
  EXPECT_EQ(samples[2].text, "plain");
  EXPECT_EQ(samples[2].where, "mem:6");
  EXPECT_EQ(samples[3].text, "\"");
}

// Writes random fields with quotes and reads them back.
TEST(Csv, RoundTrip) {
  RandomStream random(7, 0);
  std::string content = "text,n\n";
  std::vector<std::string> expected;
  for (int row = 0; row < 300; ++row) {
    std::string field = "x";
    for (std::uint64_t n = random.below(20); n > 0; --n) field += std::string("a\",\n\r b")[random.below(7)];
    expected.push_back(field);
    content += '"';
    for (const char c : field) content += c == '"' ? std::string("\"\"") : std::string(1, c);
    content += "\",\"" + std::to_string(row) + "\"\n";
  }
  const auto samples = records(content, SourceFormat::kCsv);
  ASSERT_EQ(samples.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(samples[i].text, expected[i]);
}

TEST(Csv, ColumnsHeaderAndQuotingAreOptions) {
  SourceOptions options;
  options.header = false;
  options.fields.text = "1";
  EXPECT_EQ(records("1\ta\n2\tb\n", SourceFormat::kTsv, options)[1].text, "b");
  options = {};
  options.quoting = false;
  EXPECT_EQ(records("text\n\"a\" b\n", SourceFormat::kTsv, options)[0].text, "\"a\" b");
  const auto samples = records("prompt,completion\np,c\n", SourceFormat::kCsv);
  EXPECT_EQ(samples[0].kind, Sample::Kind::kPrompt);
  EXPECT_EQ(samples[0].completion, "c");
}

TEST(Csv, Errors) {
  const auto error = [](const std::string& content) { return error_of(content, SourceFormat::kCsv); };
  EXPECT_THAT(error("text,n\na\n"), HasSubstr("a row of 1 fields where 2 are expected [mem:2]"));
  EXPECT_THAT(error("text\na\"b\n"), HasSubstr("a quote inside a field that does not begin with one [mem:2]"));
  EXPECT_THAT(error("text\n\"a\"b\n"), HasSubstr("text after a closing quote [mem:2]"));
  EXPECT_THAT(error("text\n\"a\nb\n"), HasSubstr("a quoted field without an end [mem:2]"));
  EXPECT_THAT(error("text\n\"a\nb\xc3\n"), HasSubstr("not valid UTF-8: byte 2 of the line is 0xc3 [mem:3]"));
  EXPECT_THAT(error("txt\na\n"), HasSubstr("none of the known fields is present: it has 'txt'"));
  SourceOptions options;
  options.kind = SampleKind::kText;
  EXPECT_THAT(error_of("texts\na\n", SourceFormat::kCsv, options),
              HasSubstr("no column 'text', did you mean 'texts'?"));
}

TEST(Text, Units) {
  const std::string content = "one\ntwo\r\n\n \nthree\n";
  SourceOptions options;
  EXPECT_EQ(records(content, SourceFormat::kText, options)[0].text, content);
  options.text_unit = TextUnit::kParagraph;
  auto samples = records(content, SourceFormat::kText, options);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].text, "one\ntwo");
  EXPECT_EQ(samples[1].text, "three");
  EXPECT_EQ(samples[1].where, "mem:5");
  options.text_unit = TextUnit::kLine;
  samples = records(content, SourceFormat::kText, options);
  ASSERT_EQ(samples.size(), 5u);
  EXPECT_EQ(samples[1].text, "two");
  EXPECT_THAT(error_of("ok\nab\xe2\x82\n", SourceFormat::kText), HasSubstr("byte 3 of the line is 0xe2 [mem:2]"));
}

TEST(Utf8, TheFirstBadByteIsFound) {
  EXPECT_EQ(find_invalid_utf8("plain \u00e9 \u20ac \U0001F600"), std::string_view::npos);
  for (const char* bad : {"\x80", "\xc0\x80", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                          "\xf4\x90\x80\x80", "\xf8\x88\x80\x80", "\xe2\x82", "\xf0\x9f\x98"}) {
    EXPECT_EQ(find_invalid_utf8(std::string("ab\u00e9") + bad), 4u) << bad;
  }
}

TEST(Files, FormatsAreFoundAndGlobsExpand) {
  const TempFolder folder;
  folder.write("b.jsonl", "{\"text\":\"2\"}\n");
  folder.write("a.jsonl", "{\"text\":\"1\"}\n");
  const std::string array = folder.write("data.json", "[{\"text\":\"3\"}]");
  const std::string lines = folder.write("lines.json", "{\"text\":\"4\"}\n{\"text\":\"5\"}\n");
  const std::string csv = folder.write("t.CSV", "text\n6\n");
  const std::string tsv = folder.write("t.tsv", "x\ttext\n0\t7\n");
  const std::string plain = folder.write("t.txt", "8");
  EXPECT_THAT(texts(of({(folder.path() / "*.jsonl").string(), array, lines, csv, tsv, plain})),
              ElementsAre("1", "2", "3", "4", "5", "6", "7", "8"));
}

TEST(Files, MissingFoldersAndUnknownFormats) {
  const TempFolder folder;
  const auto error = [](const SourceOptions& options) {
    try {
      resolve_sources(options);
    } catch (const Error& failure) {
      EXPECT_EQ(failure.status(), Status::kUsage);
      return std::string(failure.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error(of({})), HasSubstr("no data files are named"));
  EXPECT_THAT(error(of({(folder.path() / "*.jsonl").string()})), HasSubstr("no file matches"));
  EXPECT_THAT(error(of({folder.path().string()})), HasSubstr("is a folder; name its files"));
  EXPECT_THAT(error(of({folder.write("x.dat", "what is this")})), HasSubstr("the format of the file is plain neither"));
  EXPECT_THROW(parse_source_format("jsnl"), Error);
  EXPECT_EQ(parse_text_unit("paragraph"), TextUnit::kParagraph);
  EXPECT_EQ(parse_sample_kind("prompt"), SampleKind::kPrompt);
}

TEST(Files, CompressedEqualsPlain) {
  const TempFolder folder;
  std::string content;
  for (int i = 0; i < 20000; ++i) content += "{\"text\":\"line " + std::to_string(i * 7919 % 10007) + "\"}\n";
  const std::string first = content.substr(0, 1000), second = content.substr(1000);
  const auto plain = texts(of({folder.write("a.jsonl", content)}));
  ASSERT_EQ(plain.size(), 20000u);
  EXPECT_EQ(texts(of({folder.write("a.jsonl.gz", gzip(content))})), plain);
  EXPECT_EQ(texts(of({folder.write("b.jsonl.gz", gzip(first) + gzip("") + gzip(second) + std::string(512, '\0'))})),
            plain);
  EXPECT_EQ(texts(of({folder.write("a.jsonl.zst", zstd(content))})), plain);
  EXPECT_EQ(texts(of({folder.write("b.jsonl.zst", zstd(first) + zstd("") + zstd(second))})), plain);
  const std::string skippable(
      "\x53\x2a\x4d\x18\x03\x00\x00\x00"
      "abc",
      11);
  EXPECT_EQ(texts(of({folder.write("c.jsonl.zst", skippable + zstd(content))})), plain);
  // The name may lie.
  EXPECT_EQ(texts(of({folder.write("d.jsonl.gz", zstd(content))})), plain);
  EXPECT_EQ(texts(of({folder.write("e.jsonl.gz", content)})), plain);
}

TEST(Files, DamagedCompressionIsAnErrorEvenWhenBadSamplesAreSkipped) {
  const TempFolder folder;
  std::string content;
  for (int i = 0; i < 20000; ++i) content += "{\"text\":\"line " + std::to_string(i * 7919 % 10007) + "\"}\n";
  int count = 0;
  for (const std::string& packed : {gzip(content), zstd(content)}) {
    std::string flipped = packed;
    flipped[packed.size() / 2] ^= 0x55;
    for (const std::string& bad : {packed.substr(0, packed.size() / 2), packed.substr(0, packed.size() - 3), flipped,
                                   packed + packed.substr(0, 6)}) {
      SourceOptions options = of({folder.write("bad" + std::to_string(count++) + ".jsonl.x", bad)});
      options.format = SourceFormat::kJsonLines;
      options.skip_bad_samples = true;
      DataReport report;
      try {
        read_all(options, report);
        FAIL() << count;
      } catch (const Error& failure) {
        EXPECT_EQ(failure.status(), Status::kStorage);
        EXPECT_THAT(failure.what(), HasSubstr("cannot decompress"));
        EXPECT_THAT(failure.what(), EndsWith("the file is damaged or incomplete; fetch it again"));
      }
    }
  }
}

TEST(Files, ByteOrderMarks) {
  const TempFolder folder;
  EXPECT_THAT(texts(of({folder.write("a.jsonl", "\xef\xbb\xbf{\"text\":\"a\"}")})), ElementsAre("a"));
  EXPECT_THAT(texts(of({folder.write("a.txt", "\xef\xbb\xbf")})), ElementsAre());
  SourceOptions utf16 = of({folder.write("b.txt", std::string("\xff\xfe"
                                                              "a\0",
                                                              4))});
  EXPECT_THROW(texts(utf16), Error);
}

TEST(SampleReader, StopsAtOrCountsWhatIsBad) {
  const TempFolder folder;
  SourceOptions options = of({folder.write("a.jsonl",
                                           "{\"text\":\"1\"}\n{bad\n{\"text\":\" \"}\n{\"text\":\"2\"}\n"
                                           "{\"prompt\":\"p\",\"completion\":\"\"}\n{\"texts\":\"3\"}")});
  DataReport stopped;
  try {
    read_all(options, stopped);
    FAIL();
  } catch (const Error& failure) {
    EXPECT_EQ(failure.status(), Status::kData);
    EXPECT_THAT(failure.what(), HasSubstr("a.jsonl:2]; mend the record, or set skip_bad_samples"));
  }
  options.skip_bad_samples = true;
  DataReport report;
  EXPECT_EQ(read_all(options, report).size(), 2u);
  EXPECT_EQ(report.documents, 6);
  EXPECT_EQ(report.skipped, (std::map<std::string, std::int64_t>{{"empty", 2}, {"malformed", 2}}));
  ASSERT_EQ(report.examples.size(), 4u);
  EXPECT_THAT(report.examples[0].where, EndsWith("a.jsonl:2"));
  EXPECT_THAT(report.text(), HasSubstr("6 documents from 1 file"));
  EXPECT_THAT(report.text(), HasSubstr("left out 4: 2 empty, 2 malformed"));
  const DataReport again = DataReport::from_json(report.to_json());
  EXPECT_EQ(again.text(), report.text());
}

// Lines longer than the reader's buffer, and reads that end anywhere.
TEST(LineReader, LongLines) {
  std::string content;
  std::vector<std::size_t> lengths;
  for (const std::size_t n : {0u, 1u, 65535u, 65536u, 65537u, 300000u, 3u}) {
    lengths.push_back(n);
    content += std::string(n, 'x') + "\n";
  }
  LineReader reader(memory_stream(content), "mem");
  std::vector<std::size_t> seen;
  for (std::string_view line; reader.next(line);) seen.push_back(line.size());
  EXPECT_EQ(seen, lengths);
  EXPECT_EQ(reader.bytes(), static_cast<std::int64_t>(content.size()));
}

}  // namespace
}  // namespace convoy
