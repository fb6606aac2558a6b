// From manifests of every kind to the micro-batches of a model that hears.
#include "train/speech_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "../audio/recordings.h"
#include "../audio/tar_writer.h"
#include "../data/byte_tokenizer.h"
#include "../data/temp_folder.h"
#include "base/error.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kRecordings = 5;

const ByteTokenizer& tokenizer() {
  static const ByteTokenizer one(
      {"<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>", "<|user|>",
       "<|assistant|>", "<|begin_of_audio|>", "<|end_of_audio|>", "<|pad|>"},
      "<|endoftext|>");
  return one;
}
TokenId id(const std::string& token) {
  return tokenizer().token_to_id(token).value();
}

class SpeechDataTest : public ::testing::Test {
 protected:
  SpeechDataTest() {
    std::string lines;
    for (int i = 0; i < kRecordings; ++i) {
      folder_.write(name(i), wave(i));
      lines += R"({"audio": ")" + name(i) + R"(", "text": ")" + text(i) + "\"}\n";
    }
    config_.train_files = {folder_.write("m.jsonl", lines)};
  }
  static std::string name(int i) { return "tone" + std::to_string(i) + ".wav"; }
  static std::string text(int i) { return "tone number " + std::to_string(i); }
  static double seconds(int i) { return 0.35 + 0.15 * i; }
  static std::string wave(int i) {
    return recording({.rate = i % 2 == 0 ? 16000 : 22050, .seconds = seconds(i), .hertz = 200.0 + 90 * i});
  }

  // Whisper with windows of one second, or GLM-ASR with windows of two.
  void take(const std::string& family) {
    Json json;
    if (family == "whisper") {
      json = {{"model_type", "whisper"},
              {"vocab_size", 300},
              {"d_model", 32},
              {"num_mel_bins", 8},
              {"encoder_layers", 1},
              {"decoder_layers", 1},
              {"encoder_ffn_dim", 48},
              {"decoder_ffn_dim", 48},
              {"encoder_attention_heads", 4},
              {"decoder_attention_heads", 4},
              {"max_source_positions", 50}};
    } else {
      json = {{"model_type", "glmasr"},
              {"audio_token_id", id("<|pad|>")},
              {"text_config",
               {{"model_type", "llama"},
                {"vocab_size", 300},
                {"hidden_size", 32},
                {"intermediate_size", 48},
                {"num_hidden_layers", 1},
                {"num_attention_heads", 4},
                {"num_key_value_heads", 2},
                {"head_dim", 8},
                {"max_position_embeddings", 256}}},
              {"audio_config",
               {{"hidden_size", 32},
                {"intermediate_size", 48},
                {"num_hidden_layers", 1},
                {"num_attention_heads", 4},
                {"num_mel_bins", 8},
                {"max_position_embeddings", 100}}}};
    }
    source_.config = std::make_unique<Json>(json);
    source_.where = "test";
    source_.model = make_model(json, "test");
    shape_.rows = 3;
    shape_.seq = 160;
    shape_.audio_windows = 1;
    shape_.audio_frames = source_.model->audio()->frames;
  }
  SpeechData open(const std::string& key = "train_files") const {
    return open_speech(config_, key, tokenizer(), source_, shape_);
  }
  // The first two micro-batches of an epoch.
  std::vector<Batch> batches(const SpeechData& data, std::int64_t epoch = 0) const {
    LoaderOptions options;
    options.rows = 3;
    options.shuffle = false;
    options.prefetch = 0;
    options.complete = [&](Batch& batch) { data.source->complete(batch); };
    RowOptions rows;
    rows.row_length = shape_.seq;
    rows.mode = RowMode::kPad;
    Loader loader(data.tokens, all_documents(data.tokens->documents()), rows, options, {epoch, 0, 0});
    std::vector<Batch> made;
    for (int i = 0; i < 2; ++i) made.push_back(std::move(loader.next()->micro_batches.front()));
    return made;
  }
  std::vector<TokenId> document(const SpeechData& data, std::int64_t which) const {
    std::vector<TokenId> ids(static_cast<std::size_t>(data.tokens->length(which)));
    data.tokens->copy(which, 0, data.tokens->length(which), ids.data());
    return ids;
  }

  TempFolder folder_;
  RunConfig config_;
  ModelSource source_;
  TrainShape shape_;
};

TEST_F(SpeechDataTest, EveryKindOfManifestGivesTheSame) {
  take("glmasr");
  const SpeechData expected = open();
  ASSERT_EQ(expected.tokens->documents(), kRecordings);
  std::string common = "client_id\tpath\tsentence\n", libri, scp, texts, tar;
  for (const char* folder : {"cv/clips", "libri/1/2", "kaldi"}) fs::create_directories(folder_.path() / folder);
  for (int i = 0; i < kRecordings; ++i) {
    folder_.write("cv/clips/" + name(i), wave(i));
    folder_.write("libri/1/2/1-2-000" + std::to_string(i) + ".wav", wave(i));
    common += "me\t" + name(i) + "\t" + text(i) + "\n";
    libri += "1-2-000" + std::to_string(i) + " " + text(i) + "\n";
    scp += "u" + std::to_string(i) + " " + (folder_.path() / name(i)).string() + "\n";
    texts += "u" + std::to_string(i) + " " + text(i) + "\n";
    tar +=
        tar_member("s" + std::to_string(i) + ".wav", wave(i)) + tar_member("s" + std::to_string(i) + ".txt", text(i));
  }
  folder_.write("libri/1/2/1-2.trans.txt", libri);
  folder_.write("kaldi/wav.scp", scp);
  folder_.write("kaldi/text", texts);
  const std::vector<std::string> others = {folder_.write("cv/train.tsv", common), (folder_.path() / "libri").string(),
                                           (folder_.path() / "kaldi").string(),
                                           folder_.write("shard.tar", tar + tar_end())};
  const std::vector<Batch> batch = batches(expected);
  for (const std::string& other : others) {
    config_.train_files = {other};
    const SpeechData data = open();
    ASSERT_EQ(data.tokens->documents(), kRecordings) << other;
    for (int i = 0; i < kRecordings; ++i) EXPECT_EQ(document(data, i), document(expected, i)) << other;
    const std::vector<Batch> theirs = batches(data);
    EXPECT_EQ(theirs[0].audio_features, batch[0].audio_features) << other;
    EXPECT_EQ(theirs[1].audio_features, batch[1].audio_features) << other;
  }
}

TEST_F(SpeechDataTest, FeaturesAreThoseOfThePaddedRecording) {
  take("whisper");
  const std::vector<Batch> made = batches(open());
  LogMelConfig mel;
  mel.feature_size = 8;
  mel.chunk_length = 1;
  const Features expected = LogMel(mel).padded(decode_audio(folder_.path() / name(1)).samples);
  for (std::int64_t t = 0; t < 100; ++t) {
    for (std::int64_t m = 0; m < 8; ++m)
      ASSERT_EQ(made[0].audio_features[static_cast<std::size_t>((100 + t) * 8 + m)],
                expected.values[static_cast<std::size_t>(m * 100 + t)])
          << "frame " << t;
  }
  EXPECT_EQ(made[1].audio_features.size(), 3U * 100 * 8);
  EXPECT_TRUE(std::all_of(made[1].audio_features.begin() + 2 * 800, made[1].audio_features.end(), [](float v) {
    return v == 0;
  })) << "the row without a document";
}

TEST_F(SpeechDataTest, ThreadsAndTheCacheChangeNothing) {
  take("whisper");
  config_.audio_threads = 1;
  config_.mask_time_prob = 0.3;
  config_.mask_time_length = 4;
  const std::vector<Batch> plain = batches(open());
  config_.audio_threads = 3;
  config_.audio_cache = (folder_.path() / "cache").string();
  for (const char* what : {"making the cache", "with the cache"}) {
    const std::vector<Batch> other = batches(open());
    EXPECT_EQ(other[0].audio_features, plain[0].audio_features) << what;
    EXPECT_EQ(other[1].audio_features, plain[1].audio_features) << what;
  }
  EXPECT_FALSE(fs::is_empty(folder_.path() / "cache"));
}

TEST_F(SpeechDataTest, MasksAndSpeedsAreDrawnAnewEachEpochAndOnlyInTraining) {
  take("whisper");
  config_.validation_files = config_.train_files;
  const std::vector<Batch> plain = batches(open());
  config_.time_masks = 2;
  config_.time_mask_width = 12;
  config_.feature_masks = 1;
  config_.feature_mask_width = 3;
  const SpeechData masked = open();
  const std::vector<Batch> first = batches(masked, 0), second = batches(masked, 1);
  EXPECT_NE(first[0].audio_features, plain[0].audio_features);
  EXPECT_NE(first[0].audio_features, second[0].audio_features);
  EXPECT_EQ(first[0].audio_features, batches(masked, 0)[0].audio_features);
  EXPECT_EQ(batches(open("validation_files"))[0].audio_features, plain[0].audio_features);
  config_.audio_speeds = {"fast"};
  EXPECT_THROW(open(), Error);
}

TEST_F(SpeechDataTest, SpeedChangesThePlacesForAudio) {
  take("glmasr");
  const SpeechData plain = open();
  config_.audio_speeds = {"0.8"};
  const SpeechData slow = open();
  const Batch before = batches(plain)[0], after = batches(slow)[0];
  const auto audio = id("<|pad|>");
  for (std::int64_t r = 0; r < 3; ++r) {
    const auto row = [&](const auto& values) {
      return std::vector(values.begin() + r * shape_.seq, values.begin() + (r + 1) * shape_.seq);
    };
    const auto ids = row(before.input_ids), moved = row(after.input_ids);
    const auto count = std::count(ids.begin(), ids.end(), audio), now = std::count(moved.begin(), moved.end(), audio);
    EXPECT_GT(now, count);
    const auto samples = static_cast<std::int64_t>(std::llround(seconds(static_cast<int>(r)) / 0.8 * 16000));
    EXPECT_EQ(now, ((samples + 159) / 160 + 1) / 2 / 4);
    // But for the places the rows say the same.
    auto expected = ids, got = moved;
    std::erase(expected, audio);
    std::erase(got, audio);
    expected.resize(100);
    got.resize(100);
    EXPECT_EQ(got, expected);
    auto targets = row(before.targets), new_targets = row(after.targets);
    std::erase(targets, -1);
    std::erase(new_targets, -1);
    EXPECT_EQ(new_targets, targets);
    // A target is the token behind it.
    for (std::int64_t t = 0; t + 1 < shape_.seq; ++t) {
      const auto at = static_cast<std::size_t>(r * shape_.seq + t);
      if (after.targets[at] >= 0) {
        EXPECT_EQ(after.targets[at], after.input_ids[at + 1]);
      }
      EXPECT_EQ(after.audio_rows[at] >= 0, after.input_ids[at] == audio);
      if (after.seq_start[at] == r * shape_.seq) {
        EXPECT_EQ(after.positions[at], t);
      }
    }
  }
}

TEST_F(SpeechDataTest, RecordingsOfSeveralWindows) {
  take("glmasr");
  folder_.write("long.wav", recording({.seconds = 4.5}));
  config_.train_files = {folder_.write("long.jsonl", R"({"audio": "long.wav", "text": "long"})")};
  try {
    open();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("longer than 1 window"));
  }
  shape_.audio_windows = 3;
  config_.time_masks = 1;
  config_.time_mask_width = 50;
  const SpeechData data = open();
  const auto ids = document(data, 0);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), id("<|pad|>")), (450 + 1) / 2 / 4);
  Batch batch;
  batch.rows = 1;
  batch.seq = 160;
  batch.input_ids = ids;
  batch.input_ids.resize(160, 0);
  batch.targets.assign(160, -1);
  batch.samples = {0};
  data.source->complete(batch);
  EXPECT_EQ(batch.audio_features.size(), 3U * 200 * 8);
  EXPECT_EQ(*std::max_element(batch.audio_rows.begin(), batch.audio_rows.end()), (450 + 1) / 2 / 4 - 1);
}

TEST_F(SpeechDataTest, BadRecordsStopTheRunOrAreCounted) {
  take("whisper");
  folder_.write("noise.wav", "no recording at all");
  folder_.write("long.wav", recording({.seconds = 1.5}));
  config_.train_files.push_back(folder_.write("bad.jsonl",
                                              "{\"audio\": \"noise.wav\", \"text\": \"a\"}\n"
                                              "{\"audio\": \"absent.wav\", \"text\": \"b\"}\n"
                                              "{\"audio\": \"long.wav\", \"text\": \"c\"}\n"
                                              "{\"text\": \"d\"}\n"));
  EXPECT_THROW(open(), Error);
  config_.skip_bad_samples = true;
  const SpeechData data = open();
  EXPECT_EQ(data.tokens->documents(), kRecordings);
  EXPECT_EQ(data.tokens->report().samples, kRecordings);
  EXPECT_EQ(data.tokens->report().total_skipped(), 4);
}

TEST_F(SpeechDataTest, ARecordingThatBreaksLaterLeavesAnEmptyRow) {
  take("whisper");
  config_.skip_bad_samples = true;
  const SpeechData data = open();
  folder_.write(name(1), "no longer a recording");
  const Batch batch = batches(data)[0];
  for (std::size_t t = 0; t < 160; ++t) EXPECT_EQ(batch.targets[160 + t], -1);
  EXPECT_GT(std::count_if(batch.targets.begin(), batch.targets.begin() + 160, [](auto t) { return t >= 0; }), 0);
  config_.skip_bad_samples = false;
  folder_.write(name(1), wave(1));
  const SpeechData strict = open();
  folder_.write(name(1), "no longer a recording");
  EXPECT_THROW(batches(strict), Error);
}

}  // namespace
}  // namespace convoy
