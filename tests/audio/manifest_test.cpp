#include "audio/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../data/temp_folder.h"
#include "audio/manifest_parsers.h"
#include "recordings.h"
#include "tar_writer.h"

namespace convoy {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Manifest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    return folder_.write(name, content);
  }
  std::string tone(const std::string& name, double seconds, int format = SF_FORMAT_WAV | SF_FORMAT_PCM_16) const {
    return write(name, recording({.format = format, .seconds = seconds}));
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string failure_of(const std::string& manifest, const ManifestOptions& options = {}) const {
    try {
      read_manifest(manifest, options);
    } catch (const Error& error) {
      EXPECT_NE(error.status(), Status::kInternal);
      return error.what();
    }
    return "no error";
  }
  TempFolder folder_;
};

std::vector<std::string> texts(const std::vector<Utterance>& utterances) {
  std::vector<std::string> all;
  for (const Utterance& utterance : utterances) all.push_back(utterance.text);
  return all;
}

TEST_F(Manifest, JsonLines) {
  tone("a.wav", 1);
  tone("sub/b.flac", 2, SF_FORMAT_FLAC | SF_FORMAT_PCM_16);
  const std::string file =
      write("train.jsonl",
            "{\"audio\": \"a.wav\", \"text\": \"one\", \"duration\": 1.0, \"language\": \"en\", \"id\": 7}\n\n"
            "{\"audio\": {\"path\": \"sub/b.flac\"}, \"sentence\": \"二\"}\r\n"
            "{\"audio_filepath\": \"" +
                path("a.wav") + "\", \"text\": \"part\", \"offset\": 0.25, \"duration\": 0.5}\n");
  DataReport report;
  const std::vector<Utterance> all = read_manifest(file, {}, &report);
  EXPECT_THAT(texts(all), ElementsAre("one", "二", "part"));
  EXPECT_EQ(all[0].audio, path("a.wav"));
  EXPECT_EQ(all[0].duration, 1);
  EXPECT_EQ(all[0].language, "en");
  EXPECT_EQ(all[0].id, "7");
  EXPECT_EQ(all[1].duration, -1);
  EXPECT_EQ(all[1].where, file + ":3");
  EXPECT_EQ(all[2].start, 0.25);
  EXPECT_EQ(all[2].seconds, 0.5);
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.samples, 3);
  const UtteranceReader reader;
  EXPECT_EQ(reader.decode(all[1]).samples.size(), 32000U);
  EXPECT_EQ(reader.decode(all[2]).samples.size(), 8000U);
}

TEST_F(Manifest, BadJsonLinesAreNamedOrLeftOut) {
  tone("a.wav", 1);
  const std::string good = "{\"audio\": \"a.wav\", \"text\": \"good\"}\n";
  const std::pair<std::string, std::string> cases[] = {
      {"{\"audio\": \"a.wav\"\n", "not a JSON object"},
      {"[1]\n", "not a JSON object"},
      {"{\"text\": \"x\"}\n", "no field 'audio'"},
      {"{\"audio\": \"a.wav\"}\n", "no field 'text'"},
      {"{\"audio\": \"a.wav\", \"text\": 5}\n", "'text' is not a string"},
      {"{\"audio\": {}, \"text\": \"\"}\n", "without a 'path'"},
      {"{\"audio\": \"\", \"text\": \"\"}\n", "has no name"},
      {"{\"audio\": \"gone.wav\", \"text\": \"x\"}\n", "there is no recording"},
      {"{\"audio\": \"a.wav\", \"text\": \"x\", \"duration\": -1}\n", "'duration' is not a number of seconds"},
      {"{\"audio\": \"a.wav\", \"text\": \"\xff\"}\n", "not valid UTF-8"},
  };
  for (const auto& [line, complaint] : cases) {
    const std::string file = write("bad.jsonl", good + line + good);
    EXPECT_THAT(failure_of(file),
                testing::AllOf(HasSubstr(complaint), HasSubstr("bad.jsonl:2"), HasSubstr("skip_bad")));
    DataReport report;
    EXPECT_EQ(read_manifest(file, {.skip_bad_samples = true}, &report).size(), 2U) << line;
    EXPECT_EQ(report.skipped["malformed"], 1);
    EXPECT_EQ(report.documents, 3);
  }
  const std::string file = write("no_text.jsonl", "{\"audio\": \"a.wav\"}\n");
  EXPECT_EQ(read_manifest(file, {.need_text = false}).size(), 1U);
}

TEST_F(Manifest, CommonVoice) {
  tone("clips/x_1.mp3", 1);
  tone("clips/x_2.mp3", 2);
  const std::string file = write("train.tsv",
                                 "client_id\tpath\tsentence\tup_votes\tlocale\n"
                                 "c\tx_1.mp3\tHe said \"yes\".\t2\tzh-CN\n"
                                 "c\tx_2\tTwo\t0\tzh-CN\n");
  write("clip_durations.tsv", "clip\tduration[ms]\nx_1.mp3\t1234\nx_9.mp3\t1\n");
  const std::vector<Utterance> all = read_manifest(file);
  EXPECT_THAT(texts(all), ElementsAre("He said \"yes\".", "Two"));
  EXPECT_EQ(all[0].duration, 1.234);
  EXPECT_EQ(all[1].duration, -1);
  EXPECT_EQ(all[1].audio, path("clips/x_2.mp3"));
  EXPECT_EQ(all[1].language, "zh-CN");

  EXPECT_THAT(failure_of(write("short.tsv", "path\tsentence\nx_1.mp3\n")), HasSubstr("a row of 1 fields where 2"));
  EXPECT_THAT(failure_of(write("columns.tsv", "paths\tsentence\nx_1.mp3\ta\n")), HasSubstr("did you mean 'paths'"));
  EXPECT_THAT(failure_of(write("empty.tsv", "")), HasSubstr("the file is empty"));
  EXPECT_THAT(failure_of(file, {.clips = folder_.path() / "elsewhere"}), HasSubstr("elsewhere/x_1.mp3"));
}

TEST_F(Manifest, LibriSpeech) {
  tone("LibriSpeech/dev/84/121/84-121-0000.flac", 1, SF_FORMAT_FLAC | SF_FORMAT_PCM_16);
  tone("LibriSpeech/dev/84/121/84-121-0001.wav", 1);
  tone("LibriSpeech/dev/19/7/19-7-0000.flac", 1, SF_FORMAT_FLAC | SF_FORMAT_PCM_16);
  write("LibriSpeech/dev/84/121/84-121.trans.txt", "84-121-0000 GO ON  NOW\n84-121-0001 SO\n");
  write("LibriSpeech/dev/19/7/19-7.trans.txt", "19-7-0000 FIRST\n");
  const std::vector<Utterance> all = read_manifest(path("LibriSpeech"));
  EXPECT_THAT(texts(all), ElementsAre("FIRST", "GO ON  NOW", "SO"));
  EXPECT_EQ(all[2].audio, path("LibriSpeech/dev/84/121/84-121-0001.wav"));
  EXPECT_EQ(all[2].id, "84-121-0001");
  write("LibriSpeech/dev/84/121/84-121.trans.txt", "84-121-0009 GONE\n");
  EXPECT_THAT(failure_of(path("LibriSpeech")), HasSubstr("84-121-0009.flac"));
}

TEST_F(Manifest, Kaldi) {
  const std::string a = tone("kaldi/a.wav", 3);
  tone("kaldi/b.wav", 1);
  // An archive with a recording behind 10 other bytes.
  write("kaldi/raw.ark", "utterance " + recording({.seconds = 2}));
  write("kaldi/wav.scp", "a " + a + "\nb b.wav\nc raw.ark:10\n");
  write("kaldi/text", "a  hello world \nb\nc three\n");
  write("kaldi/utt2dur", "a 3.0\nb 1.0\n");
  std::vector<Utterance> all = read_manifest(path("kaldi"));
  EXPECT_THAT(texts(all), ElementsAre("hello world", "", "three"));
  EXPECT_EQ(all[1].duration, 1);
  EXPECT_EQ(all[2].offset, 10U);
  measure_durations(all);
  EXPECT_EQ(all[2].duration, 2);
  EXPECT_EQ(UtteranceReader().decode(all[2]).samples.size(), 32000U);

  write("kaldi/segments", "a-1 a 0.5 1.5\na-2 a 2 -1\n");
  write("kaldi/text", "a-1 half\na-2 rest\n");
  all = read_manifest(path("kaldi/wav.scp"));
  EXPECT_THAT(texts(all), ElementsAre("half", "rest"));
  EXPECT_EQ(all[0].duration, 1);
  measure_durations(all);
  EXPECT_EQ(all[1].duration, 1);
  EXPECT_EQ(UtteranceReader().decode(all[1]).samples.size(), 16000U);

  write("kaldi/text", "a-1 half\nx unknown\n");
  EXPECT_THAT(failure_of(path("kaldi")), HasSubstr("no transcript of 'a-2'"));
  DataReport report;
  EXPECT_EQ(read_manifest(path("kaldi"), {.skip_bad_samples = true}, &report).size(), 1U);
  EXPECT_EQ(report.skipped["malformed"], 2);
  write("kaldi/segments", "a-1 a 1.5 0.5\n");
  write("kaldi/text", "a-1 half\n");
  EXPECT_THAT(failure_of(path("kaldi")), HasSubstr("ends at 0.5 and begins at 1.5"));
  std::filesystem::remove(path("kaldi/segments"));
  write("kaldi/wav.scp", "a-1 sox in.wav -t wav - |\n");
  EXPECT_THAT(failure_of(path("kaldi")), HasSubstr("commands are not run"));
  write("kaldi/wav.scp", "a-1 a.wav\na-1 b.wav\n");
  EXPECT_THAT(failure_of(path("kaldi")), HasSubstr("a second time"));
}

TEST_F(Manifest, TarShards) {
  const std::string wav = recording({.seconds = 1});
  const std::string flac = recording({.format = SF_FORMAT_FLAC | SF_FORMAT_PCM_16, .seconds = 2});
  const std::string long_name = std::string(120, 'k');
  const std::string file = write(
      "shard-000.tar",
      tar_member("dir/", "", '5') + tar_member("dir/README", "about") + tar_member("dir/one.wav", wav) +
          tar_member("dir/one.txt", " eins\n") +
          tar_member("two.json", R"({"text": "zwei", "duration": 2, "language": "de"})") +
          tar_member("two.FLAC", flac) + tar_member("././@LongLink", long_name + ".wav\0", 'L') +
          tar_member("cut", wav) + tar_member("././@LongLink", long_name + ".txt\0", 'L') + tar_member("cut", "drei") +
          tar_member("pax", pax_record("path", "four.wav") + pax_record("mtime", "1.5"), 'x') +
          tar_member("other", wav) + tar_member("four.txt", "vier") + tar_member("five.wav", wav, '0', "pre/fix") +
          tar_member("five.txt", "fünf", '0', "pre/fix") + tar_end());
  const std::vector<Utterance> all = read_manifests({path("shard-*.tar")});
  EXPECT_THAT(texts(all), ElementsAre("eins", "zwei", "drei", "vier", "fünf"));
  EXPECT_EQ(all[0].id, "dir/one");
  EXPECT_EQ(all[1].duration, 2);
  EXPECT_EQ(all[2].id, long_name);
  EXPECT_EQ(all[4].id, "pre/fix/five");
  const UtteranceReader reader;
  for (const Utterance& utterance : all) {
    EXPECT_EQ(reader.decode(utterance).samples.size(), utterance.text == "zwei" ? 32000U : 16000U);
  }
}

TEST_F(Manifest, DamagedTarShards) {
  const std::string wav = recording({.seconds = 1});
  const std::string whole = tar_member("a.wav", wav) + tar_member("a.txt", "x") + tar_end();
  EXPECT_THAT(failure_of(write("cut.tar", whole.substr(0, 20000))), HasSubstr("cut short"));
  EXPECT_THAT(failure_of(write("header.tar", whole.substr(0, 512 + (wav.size() + 511) / 512 * 512 + 100))),
              HasSubstr("ends within a header"));
  std::string flipped = whole;
  flipped[3] ^= 1;
  EXPECT_THAT(failure_of(write("flip.tar", flipped)), HasSubstr("no tar header"));
  EXPECT_THAT(failure_of(write("zip.tar", gzip(whole))), HasSubstr("compressed tar"));
  EXPECT_THAT(
      failure_of(write("two.tar", tar_member("a.wav", wav) + tar_member("a.flac", wav) + tar_member("a.txt", "x"))),
      HasSubstr("two members of the same kind"));
  EXPECT_THAT(failure_of(write("none.tar", tar_member("a.txt", "x"))), HasSubstr("'a' has no recording"));
  EXPECT_THAT(failure_of(write("mute.tar", tar_member("a.wav", wav))), HasSubstr("no transcript"));
  EXPECT_EQ(read_manifest(write("mute.tar", tar_member("a.wav", wav)), {.need_text = false}).size(), 1U);
}

TEST_F(Manifest, ShardsThatChangeAreNoticed) {
  const std::string wav = recording({.seconds = 1});
  const std::string file = write("a.tar", tar_member("a.wav", wav) + tar_member("a.txt", "x") + tar_end());
  const std::vector<Utterance> all = read_manifest(file);
  write("a.tar", "short");
  try {
    UtteranceReader().decode(all[0]);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("changed since the manifest was read"));
  }
}

TEST_F(Manifest, FormatsAreToldApart) {
  EXPECT_EQ(detect_manifest_format(write("x", "{\"audio\": \"a\"}\n")), ManifestFormat::kJsonLines);
  EXPECT_EQ(detect_manifest_format(write("x.jsonl.gz", gzip("{}"))), ManifestFormat::kJsonLines);
  EXPECT_THAT(failure_of(write("y", "text\n")), HasSubstr("neither from its name nor from its content"));
  EXPECT_THAT(failure_of(path("gone.jsonl")), HasSubstr("no such manifest"));
  std::filesystem::create_directories(path("bare"));
  EXPECT_THAT(failure_of(path("bare")), HasSubstr("neither Kaldi's"));
  EXPECT_THROW(read_manifests({path("*.nothing")}), Error);
  EXPECT_EQ(parse_manifest_format("kaldi"), ManifestFormat::kKaldi);
  EXPECT_THROW(parse_manifest_format("kald"), Error);
}

TEST_F(Manifest, DurationsAreMeasuredAndLimited) {
  tone("a.wav", 1);
  tone("b.wav", 4);
  tone("c.wav", 0.1);
  write("d.wav", "no sound");
  std::string lines;
  for (const char* name : {"a", "b", "c", "d"})
    lines += std::string("{\"audio\": \"") + name + ".wav\", \"text\": \"" + name + "\"}\n";
  const std::string file = write("m.jsonl", lines);
  std::vector<Utterance> all = read_manifest(file);
  try {
    measure_durations(all);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("d.wav"), HasSubstr("not a recording")));
  }
  DataReport report;
  all = read_manifest(file, {}, &report);
  measure_durations(all, true, &report);
  EXPECT_THAT(texts(all), ElementsAre("a", "b", "c"));
  limit_durations(all, 0.5, 3, &report);
  EXPECT_THAT(texts(all), ElementsAre("a"));
  EXPECT_EQ(report.samples, 1);
  EXPECT_EQ(report.skipped,
            (std::map<std::string, std::int64_t>{{"too long", 1}, {"too short", 1}, {"unreadable", 1}}));
}

}  // namespace
}  // namespace convoy
