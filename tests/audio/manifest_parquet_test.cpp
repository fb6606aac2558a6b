// Speech data in Parquet files, in a build that reads them.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>

#include <fstream>
#include <optional>

#include "../data/temp_folder.h"
#include "audio/manifest.h"
#include "base/error.h"
#include "recordings.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

void ok(const arrow::Status& status) {
  ASSERT_TRUE(status.ok()) << status.ToString();
}

struct Row {
  std::optional<std::string> bytes;
  std::optional<std::string> path, sentence;
};

class ParquetManifest : public testing::Test {
 protected:
  ParquetManifest() { options_.unpack = folder_.path() / "cache"; }

  std::string write(const std::string& name, const std::vector<Row>& rows) const {
    const auto type = arrow::struct_({arrow::field("bytes", arrow::binary()), arrow::field("path", arrow::utf8())});
    auto bytes = std::make_shared<arrow::BinaryBuilder>();
    auto path = std::make_shared<arrow::StringBuilder>();
    arrow::StructBuilder audio(type, arrow::default_memory_pool(),
                               std::vector<std::shared_ptr<arrow::ArrayBuilder>>{bytes, path});
    arrow::StringBuilder sentence, locale;
    for (const Row& row : rows) {
      ok(audio.Append());
      ok(row.bytes ? bytes->Append(*row.bytes) : bytes->AppendNull());
      ok(row.path ? path->Append(*row.path) : path->AppendNull());
      ok(row.sentence ? sentence.Append(*row.sentence) : sentence.AppendNull());
      ok(locale.Append("zh"));
    }
    const auto table =
        arrow::Table::Make(arrow::schema({arrow::field("audio", type), arrow::field("sentence", arrow::utf8()),
                                          arrow::field("locale", arrow::utf8())}),
                           {*audio.Finish(), *sentence.Finish(), *locale.Finish()});
    const std::string file = (folder_.path() / name).string();
    const auto out = *arrow::io::FileOutputStream::Open(file);
    ok(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), out, 2));
    ok(out->Close());
    return file;
  }
  std::string error_of(const std::string& file) const {
    try {
      read_manifest(file, options_);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  TempFolder folder_;
  ManifestOptions options_;
};

TEST_F(ParquetManifest, EmbeddedRecordingsAreReadInPlace) {
  const std::string a = recording({.seconds = 0.5});
  const std::string b = recording({.format = SF_FORMAT_FLAC | SF_FORMAT_PCM_16, .rate = 48000, .seconds = 1.25});
  folder_.write("beside.wav", recording({.seconds = 2}));
  const std::string file = write(
      "train.parquet",
      {{a, "one.wav", "一"}, {std::nullopt, "beside.wav", "二"}, {b, std::nullopt, "三"}, {a, "again.wav", "四"}});
  for (int time = 0; time < 2; ++time) {  // the second time they are unpacked already
    DataReport report;
    std::vector<Utterance> all = read_manifest(file, options_, &report);
    ASSERT_EQ(all.size(), 4u);
    EXPECT_EQ(report.samples, 4);
    EXPECT_EQ(all[2].text, "三");
    EXPECT_EQ(all[2].language, "zh");
    EXPECT_EQ(all[0].id, "one.wav");
    EXPECT_THAT(all[3].where, HasSubstr("train.parquet, row 4"));
    measure_durations(all);
    const UtteranceReader reader;
    const double seconds[] = {0.5, 2, 1.25, 0.5};
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_DOUBLE_EQ(all[i].duration, seconds[i]) << i;
      EXPECT_NEAR(reader.decode(all[i]).seconds(), seconds[i], 1e-3) << i;
    }
  }
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options_.unpack))
    files += entry.is_regular_file();
  EXPECT_EQ(files, 1u) << "one file for all recordings, nothing left over";
}

TEST_F(ParquetManifest, BadRowsAreNamedOrLeftOut) {
  const std::string good = recording({.seconds = 0.5});
  const std::string file = write(
      "some.parquet", {{good, "a.wav", "a"}, {"", "b.wav", "b"}, {good, "c.wav", std::nullopt}, {good, "d", "d"}});
  EXPECT_THAT(error_of(file), HasSubstr("the recording is empty"));
  EXPECT_THAT(error_of(file), HasSubstr("some.parquet, row 2"));
  ManifestOptions skipping = options_;
  skipping.skip_bad_samples = true;
  DataReport report;
  std::vector<Utterance> all = read_manifest(file, skipping, &report);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(report.total_skipped(), 2);
  EXPECT_NEAR(UtteranceReader().decode(all[1]).seconds(), 0.5, 1e-3) << "the places of those after it are right";
  EXPECT_THAT(error_of(folder_.write("no.parquet", "nothing")), HasSubstr("no.parquet"));
}

}  // namespace
}  // namespace convoy
