#include "audio/log_mel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "recordings.h"

namespace convoy {
namespace {

using testing::HasSubstr;

const SafetensorsFile& golden() {
  static const SafetensorsFile file(std::filesystem::path(CONVOY_TEST_DATA) / "logmel.safetensors");
  return file;
}
template <typename T>
std::vector<T> values(const std::string& name) {
  const std::span<const std::byte> bytes = golden().find(name).bytes;
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}
LogMelConfig golden_config(int bins) {
  return {.feature_size = bins, .chunk_length = 2};
}

class Golden : public testing::TestWithParam<int> {};

TEST_P(Golden, FeaturesAndMask) {
  const int bins = GetParam();
  const LogMel log_mel(golden_config(bins));
  const std::vector<float> wave = values<float>("waveform");
  const Features features = log_mel.padded(wave);
  const std::vector<float> expected = values<float>("mel" + std::to_string(bins));
  ASSERT_EQ(features.bins, bins);
  ASSERT_EQ(features.frames, 200);
  ASSERT_EQ(features.values.size(), expected.size());
  float worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) worst = std::max(worst, std::abs(features.values[i] - expected[i]));
  EXPECT_LT(worst, 1e-4F);
  RecordProperty("largest_difference", std::to_string(worst));

  const std::vector<std::int32_t> mask = values<std::int32_t>("mask" + std::to_string(bins));
  for (std::int64_t t = 0; t < features.frames; ++t) {
    EXPECT_EQ(mask[static_cast<std::size_t>(t)], t < features.valid_frames ? 1 : 0) << t;
  }
}

TEST_P(Golden, Filters) {
  const int bins = GetParam();
  const std::vector<float> filters = LogMel(golden_config(bins)).filters();
  const std::vector<float> expected = values<float>("filters" + std::to_string(bins));  // [201, bins]
  ASSERT_EQ(filters.size(), expected.size());
  for (std::size_t k = 0; k < 201; ++k) {
    for (std::size_t m = 0; m < static_cast<std::size_t>(bins); ++m) {
      ASSERT_NEAR(filters[m * 201 + k], expected[k * static_cast<std::size_t>(bins) + m], 1e-8);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bins, Golden, testing::Values(80, 128));

TEST(LogMel, UnpaddedIsTheBeginningOfPadded) {
  const LogMel log_mel({.chunk_length = 2});
  for (const std::size_t samples : {1UL, 159UL, 160UL, 161UL, 400UL, 16000UL, 31799UL, 31801UL, 32000UL}) {
    std::vector<float> wave = sine(300, 16000, 2);
    wave.resize(samples);
    const Features padded = log_mel.padded(wave), own = log_mel.unpadded(wave);
    ASSERT_EQ(own.frames, static_cast<std::int64_t>((samples + 159) / 160));
    ASSERT_EQ(own.valid_frames, own.frames);
    ASSERT_EQ(padded.valid_frames, own.frames);
    for (std::int64_t m = 0; m < own.bins; ++m) {
      for (std::int64_t t = 0; t < own.frames; ++t) {
        ASSERT_EQ(own.values[static_cast<std::size_t>(m * own.frames + t)],
                  padded.values[static_cast<std::size_t>(m * padded.frames + t)])
            << samples << " samples, bin " << m << ", frame " << t;
      }
    }
  }
}

TEST(LogMel, PaddingIsWhatZerosWouldGive) {
  const LogMel log_mel({.chunk_length = 2});
  std::vector<float> wave = sine(300, 16000, 0.7);
  const Features features = log_mel.padded(wave);
  wave.resize(32000);
  EXPECT_EQ(features.values, log_mel.padded(wave).values);
}

TEST(LogMel, ASineLiesInItsBin) {
  const LogMel log_mel({});
  const Features features = log_mel.unpadded(sine(1000, 16000, 1));
  std::int64_t loudest = 0;
  for (std::int64_t m = 0; m < features.bins; ++m) {
    const auto at = [&](std::int64_t bin) {
      return features.values[static_cast<std::size_t>(bin * features.frames + 50)];
    };
    if (at(m) > at(loudest)) loudest = m;
  }
  // 1000 Hz is mel 15 of 0 … 45.245 cut by 81: bin 26 has its middle at 14.52 + …, so 15 / (45.245 / 81) - 1 = 25.85.
  EXPECT_EQ(loudest, 26);
}

TEST(LogMel, SilenceIsFlat) {
  const Features features = LogMel({.chunk_length = 2}).padded(std::vector<float>(5000));
  for (const float value : features.values) ASSERT_FLOAT_EQ(value, -1.5F);
}

TEST(LogMel, NormalizesWhereAskedTo) {
  const LogMel plain({.chunk_length = 2}), normalized({.chunk_length = 2, .do_normalize = true});
  const std::vector<float> quiet = sine(440, 16000, 2, 0.01F);
  std::vector<float> loud = sine(440, 16000, 2, std::sqrt(2.0F));  // mean 0 and variance 1
  const Features a = normalized.padded(quiet), b = plain.padded(loud);
  for (std::size_t i = 0; i < a.values.size(); ++i) ASSERT_NEAR(a.values[i], b.values[i], 2e-3);
}

TEST(LogMel, CutsLongClipsIntoWindows) {
  const LogMel log_mel({.chunk_length = 2});
  const std::vector<float> wave = sine(440, 16000, 5);
  const std::vector<Features> windows = log_mel.windows(wave);
  ASSERT_EQ(windows.size(), 3U);
  EXPECT_EQ(windows[0].valid_frames, 200);
  EXPECT_EQ(windows[2].valid_frames, 100);
  EXPECT_EQ(windows[2].frames, 200);
  EXPECT_EQ(windows[1].values, log_mel.padded(std::span(wave).subspan(32000, 32000)).values);
  EXPECT_EQ(log_mel.unpadded(wave).frames, 500);
}

TEST(LogMel, RefusesClipsThatDoNotFit) {
  const LogMel log_mel({.chunk_length = 2});
  EXPECT_THROW(log_mel.padded({}), Error);
  EXPECT_THROW(log_mel.unpadded({}), Error);
  EXPECT_THROW(log_mel.windows({}), Error);
  try {
    log_mel.padded(std::vector<float>(32001));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("longer than the 2 s"));
  }
}

TEST(LogMelConfig, ReadsHuggingFaceFiles) {
  const LogMelConfig whisper = read_log_mel_config(
      Json::parse(R"({"chunk_length": 30, "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128,
          "hop_length": 160, "n_fft": 400, "n_samples": 480000, "nb_max_frames": 3000, "padding_side": "right",
          "padding_value": 0.0, "processor_class": "WhisperProcessor", "return_attention_mask": false,
          "sampling_rate": 16000, "dither": 0.0})"),
      "preprocessor_config.json");
  EXPECT_EQ(whisper, (LogMelConfig{.feature_size = 128}));
  EXPECT_EQ(whisper.chunk_frames(), 3000);
  EXPECT_EQ(read_log_mel_config(Json::parse(R"({"feature_extractor": {"feature_size": 128}})"), "x").feature_size, 128);
}

TEST(LogMelConfig, RefusesWhatItDoesNotProvide) {
  const auto failure = [](const char* json) -> std::string {
    try {
      read_log_mel_config(Json::parse(json), "file.json");
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::kUsage);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(failure(R"({"feature_extractor_type": "SeamlessM4TFeatureExtractor"})"), HasSubstr("SeamlessM4T"));
  EXPECT_THAT(failure(R"({"dither": 0.1})"), HasSubstr("dither is 0.1, not 0"));
  EXPECT_THAT(failure(R"({"n_fft": 401})"), HasSubstr("n_fft is 401"));
  EXPECT_THAT(failure(R"({"hop_length": 0})"), HasSubstr("hop_length is 0"));
  EXPECT_THAT(failure(R"({"feature_size": "80"})"), HasSubstr("not a whole number"));
  EXPECT_THAT(failure(R"([1])"), HasSubstr("not an object"));
  EXPECT_THAT(failure(R"({"chunk_length": 4000})"), HasSubstr("chunk_length is 4000"));
}

}  // namespace
}  // namespace convoy
