#include "data/parquet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "data/source.h"
#include "temp_folder.h"

#ifdef CONVOY_TEST_PARQUET
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/writer.h>
#endif

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& failure) {
    return failure.what();
  }
  return "no error";
}

TEST(Parquet, IsKnownByNameAndContent) {
  const TempFolder folder;
  SourceOptions options;
  options.paths = {folder.write("a.parquet", "whatever"), folder.write("b.data", "PAR1....PAR1")};
  for (const SourceFile& file : resolve_sources(options)) EXPECT_EQ(file.format, SourceFormat::kParquet) << file.path;
}

#ifndef CONVOY_TEST_PARQUET

TEST(Parquet, ABuildWithoutArrowSaysHowToGetIt) {
  EXPECT_FALSE(reads_parquet());
  const TempFolder folder;
  SourceOptions options;
  options.paths = {folder.write("a.parquet", "PAR1")};
  options.skip_bad_samples = true;
  DataReport report;
  Sample sample;
  const std::string error = error_of([&] { SampleReader(options, report).next(sample); });
  EXPECT_THAT(error, HasSubstr("reads no Parquet files"));
  EXPECT_THAT(error, HasSubstr("CONVOY_PARQUET=ON"));
  EXPECT_THAT(error, HasSubstr("a.parquet"));
}

#else

void ok(const arrow::Status& status) {
  ASSERT_TRUE(status.ok()) << status.ToString();
}

template <typename Builder, typename Values>
std::shared_ptr<arrow::Array> array_of(Builder builder, const Values& values) {
  for (const auto& value : values) ok(value ? builder.Append(*value) : builder.AppendNull());
  return *builder.Finish();
}

std::string write(const TempFolder& folder, const std::string& name, const std::shared_ptr<arrow::Table>& table,
                  std::int64_t group = 1000, bool compressed = true) {
  const std::string path = (folder.path() / name).string();
  const auto file = *arrow::io::FileOutputStream::Open(path);
  parquet::WriterProperties::Builder properties;
  properties.compression(compressed ? parquet::Compression::ZSTD : parquet::Compression::UNCOMPRESSED);
  ok(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), file, group, properties.build()));
  ok(file->Close());
  return path;
}

std::shared_ptr<arrow::Table> texts(std::int64_t count) {
  arrow::StringBuilder text;
  arrow::Int64Builder id;
  arrow::BinaryBuilder picture;
  for (std::int64_t i = 0; i < count; ++i) {
    ok(text.Append("line \"" + std::to_string(i) + "\" 你好"));
    ok(id.Append(i));
    ok(picture.Append("\xff\xfe"));
  }
  return arrow::Table::Make(arrow::schema({arrow::field("id", arrow::int64()), arrow::field("text", arrow::utf8()),
                                           arrow::field("picture", arrow::binary())}),
                            {*id.Finish(), *text.Finish(), *picture.Finish()});
}

std::vector<Sample> samples_of(const std::string& path, DataReport& report, SourceOptions options = {}) {
  options.paths = {path};
  SampleReader reader(options, report);
  std::vector<Sample> all;
  for (Sample sample; reader.next(sample);) all.push_back(sample);
  return all;
}

TEST(Parquet, TextsOfSeveralRowGroups) {
  const TempFolder folder;
  DataReport report;
  const std::vector<Sample> all = samples_of(write(folder, "a.parquet", texts(700), 300), report);
  ASSERT_EQ(all.size(), 700u);
  EXPECT_EQ(all[699].text, "line \"699\" 你好");
  EXPECT_THAT(all[699].where, HasSubstr("a.parquet, row 700"));
  EXPECT_EQ(report.files, 1);
}

TEST(Parquet, ConversationsWithNullsAndTools) {
  const auto message = arrow::struct_({arrow::field("role", arrow::utf8()), arrow::field("content", arrow::utf8()),
                                       arrow::field("weight", arrow::float32())});
  auto role = std::make_shared<arrow::StringBuilder>();
  auto content = std::make_shared<arrow::StringBuilder>();
  auto weight = std::make_shared<arrow::FloatBuilder>();
  auto item = std::make_shared<arrow::StructBuilder>(
      message, arrow::default_memory_pool(), std::vector<std::shared_ptr<arrow::ArrayBuilder> >{role, content, weight});
  arrow::ListBuilder list(arrow::default_memory_pool(), item);
  const auto add = [&](const char* who, const char* what, std::optional<float> counts) {
    ok(item->Append());
    ok(role->Append(who));
    ok(content->Append(what));
    ok(counts ? weight->Append(*counts) : weight->AppendNull());
  };
  ok(list.Append());
  add("user", "Hi", std::nullopt);
  add("assistant", "Hello.", 0.0f);
  add("user", "Bye", std::nullopt);
  add("assistant", "Ciao.", std::nullopt);
  ok(list.Append());
  add("user", "And?", std::nullopt);
  arrow::StringBuilder tools;
  ok(tools.Append(R"([{"type": "function"}])"));
  ok(tools.AppendNull());
  const auto table = arrow::Table::Make(
      arrow::schema({arrow::field("messages", arrow::list(message)), arrow::field("tools", arrow::utf8())}),
      {*list.Finish(), *tools.Finish()});
  const TempFolder folder;
  DataReport report;
  const std::vector<Sample> all = samples_of(write(folder, "chat.parquet", table), report);
  ASSERT_EQ(all.size(), 2u);
  ASSERT_EQ(all[0].messages.size(), 4u);
  EXPECT_EQ(all[0].messages[1].content, "Hello.");
  EXPECT_FALSE(all[0].messages[1].trained);
  EXPECT_TRUE(all[0].messages[3].trained);
  EXPECT_EQ(all[0].tools, R"([{"type": "function"}])");
  EXPECT_EQ(all[1].tools, "");
  EXPECT_EQ(all[1].messages.size(), 1u);
}

TEST(Parquet, ValuesOfEveryKind) {
  const auto coded = arrow::DictionaryArray::FromArrays(
      array_of(arrow::Int32Builder(), std::vector<std::optional<int> >{1, 0, std::nullopt}),
      array_of(arrow::StringBuilder(), std::vector<std::optional<std::string> >{"no", "yes"}));
  const auto table = arrow::Table::Make(
      arrow::schema({arrow::field("flag", arrow::boolean()), arrow::field("real", arrow::float64()),
                     arrow::field("bytes", arrow::binary()), arrow::field("word", (*coded)->type()),
                     arrow::field("day", arrow::date32())}),
      {array_of(arrow::BooleanBuilder(), std::vector<std::optional<bool> >{true, false, std::nullopt}),
       array_of(arrow::DoubleBuilder(), std::vector<std::optional<double> >{0.5, std::nan(""), std::nullopt}),
       array_of(arrow::BinaryBuilder(), std::vector<std::optional<std::string> >{"\xff", "", std::nullopt}), *coded,
       array_of(arrow::Date32Builder(), std::vector<std::optional<int> >{0, 1, std::nullopt})});
  const TempFolder folder;
  const auto rows = open_parquet(write(folder, "kinds.parquet", table));
  EXPECT_EQ(rows->rows(), 3);
  EXPECT_THAT(rows->columns(), ElementsAre("flag", "real", "bytes", "word", "day"));
  Json row;
  ASSERT_TRUE(rows->next(row));
  EXPECT_EQ(row["flag"], true);
  EXPECT_EQ(row["real"], 0.5);
  EXPECT_EQ(row["bytes"].get_binary(), Json::binary_t({0xff}));
  EXPECT_EQ(row["word"], "yes");
  EXPECT_EQ(row["day"], "1970-01-01");
  ASSERT_TRUE(rows->next(row));
  EXPECT_TRUE(row["real"].is_null()) << "NaN is no JSON";
  ASSERT_TRUE(rows->next(row));
  for (const auto& [name, value] : row.items()) EXPECT_TRUE(value.is_null()) << name;
  EXPECT_FALSE(rows->next(row));
}

TEST(Parquet, WhatCannotBeReadIsNamed) {
  const TempFolder folder;
  DataReport report;
  EXPECT_THAT(error_of([&] { samples_of(folder.write("no.parquet", "PAR1 and then nothing"), report); }),
              HasSubstr("not a Parquet file, or a damaged one"));
  SourceOptions other;
  other.fields.text = "body";
  other.skip_bad_samples = true;
  const std::string fields = error_of([&] { samples_of(write(folder, "b.parquet", texts(3)), report, other); });
  EXPECT_THAT(fields, HasSubstr("it has 'id', 'text', 'picture'"));
  EXPECT_THAT(fields, HasSubstr("b.parquet"));
  // A row without its text is one sample that can be left out.
  const auto some = arrow::Table::Make(
      arrow::schema({arrow::field("text", arrow::utf8())}),
      {array_of(arrow::StringBuilder(), std::vector<std::optional<std::string> >{"a", std::nullopt, "c"})});
  const std::string path = write(folder, "some.parquet", some);
  EXPECT_THAT(error_of([&] { samples_of(path, report); }), HasSubstr("some.parquet, row 2"));
  SourceOptions skipping;
  skipping.skip_bad_samples = true;
  EXPECT_EQ(samples_of(path, report, skipping).size(), 2u);
}

TEST(Parquet, ADamagedFileIsAnErrorNeverACrash) {
  const TempFolder folder;
  for (const bool compressed : {true, false}) {
    const std::string whole = read_file(write(folder, "whole.parquet", texts(50), 20, compressed));
    for (std::size_t at = 0; at < whole.size(); at += 11) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ 0x55);
      const std::string path = folder.write("bad.parquet", bad);
      try {
        DataReport report;
        samples_of(path, report);
      } catch (const Error& failure) {
        EXPECT_THAT(failure.what(), HasSubstr("bad.parquet")) << at;
      }
    }
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{3}, std::size_t{12}, whole.size() / 2, whole.size() - 1}) {
      DataReport report;
      const std::string path = folder.write("short.parquet", whole.substr(0, length));
      EXPECT_THAT(error_of([&] { samples_of(path, report); }), HasSubstr("short.parquet")) << length;
    }
  }
}

#endif

}  // namespace
}  // namespace convoy
