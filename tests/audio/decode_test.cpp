#include "audio/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "audio/resample.h"
#include "base/error.h"
#include "base/random.h"
#include "recordings.h"

// libsndfile 1.2.0 does not free what libvorbis gave it where an Ogg file's headers are damaged;
// DamagedBytesGiveErrorsOrSamples opens many of those. Nothing of Convoy's allocates there.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:vorbis_info_init\n";
}

namespace convoy {
namespace {

using testing::HasSubstr;

Audio decode(const std::string& bytes, const DecodeOptions& options = {}) {
  return decode_audio(bytes_of(bytes), "test.bin", options);
}

std::string failure_of(const std::string& bytes, const DecodeOptions& options = {}) {
  try {
    decode(bytes, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kData) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("test.bin"));
    EXPECT_FALSE(error.remedy().empty());
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// The largest difference from a sine, away from the ends, where filters and codecs ring.
double sine_error(const Audio& audio, double hertz, float gain, double delay = 0) {
  double worst = 0;
  const auto margin = static_cast<std::size_t>(audio.sampling_rate / 10);
  for (std::size_t i = margin; i + margin < audio.samples.size(); ++i) {
    const double t = static_cast<double>(i) / audio.sampling_rate - delay;
    worst = std::max(worst, std::abs(audio.samples[i] - gain * std::sin(2 * std::numbers::pi * hertz * t)));
  }
  return worst;
}

struct Format {
  const char* name;
  int format;
  int rate;
  double tolerance;
};
class Formats : public testing::TestWithParam<Format> {};

TEST_P(Formats, GiveTheSineAtSixteenKilohertz) {
  RecordingShape shape;
  shape.format = GetParam().format;
  shape.rate = GetParam().rate;
  shape.channels = 2;
  shape.gains = {0.6F, 0.2F};
  const std::string bytes = recording(shape);
  const Audio audio = decode(bytes);
  EXPECT_EQ(audio.sampling_rate, 16000);
  EXPECT_EQ(audio.source.channels, 2);
  EXPECT_EQ(audio.source.sampling_rate, shape.rate);
  // MP3 has padding before and behind, unless its header says how much; everything else is exact.
  EXPECT_NEAR(static_cast<double>(audio.samples.size()), 16000.0, 1);
  EXPECT_LT(sine_error(audio, shape.hertz, 0.4F), GetParam().tolerance);
  EXPECT_EQ(probe_audio(bytes_of(bytes), "test.bin").frames, audio.source.frames);
}

INSTANTIATE_TEST_SUITE_P(All, Formats,
                         testing::Values(Format{"wav16", SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 4e-5},
                                         Format{"wav24", SF_FORMAT_WAV | SF_FORMAT_PCM_24, 44100, 2e-5},
                                         Format{"wav8", SF_FORMAT_WAV | SF_FORMAT_PCM_U8, 8000, 1e-2},
                                         Format{"wavfloat", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 48000, 2e-5},
                                         Format{"wavx24", SF_FORMAT_WAVEX | SF_FORMAT_PCM_24, 96000, 2e-5},
                                         Format{"ulaw", SF_FORMAT_WAV | SF_FORMAT_ULAW, 8000, 3e-2},
                                         Format{"flac24", SF_FORMAT_FLAC | SF_FORMAT_PCM_24, 48000, 2e-5},
                                         Format{"flac16", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 22050, 6e-5},
                                         Format{"vorbis", SF_FORMAT_OGG | SF_FORMAT_VORBIS, 44100, 3e-2},
                                         Format{"opus", SF_FORMAT_OGG | SF_FORMAT_OPUS, 48000, 3e-2},
                                         Format{"mp3", SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 48000, 3e-2},
                                         Format{"aiff", SF_FORMAT_AIFF | SF_FORMAT_PCM_16, 32000, 6e-5}),
                         [](const auto& param) { return param.param.name; });

TEST(Decode, MixesSixChannelsByTheirMean) {
  RecordingShape shape;
  shape.channels = 6;
  shape.format = SF_FORMAT_WAVEX | SF_FORMAT_PCM_24;
  shape.gains = {0.9F, 0.3F, 0.0F, 0.6F, -0.3F, 0.0F};
  const Audio audio = decode(recording(shape));
  EXPECT_EQ(audio.source.channels, 6);
  EXPECT_LT(sine_error(audio, shape.hertz, 0.25F), 1e-5);
}

TEST(Decode, LeavesTheRateWhereNoneIsAskedFor) {
  RecordingShape shape;
  shape.rate = 22050;
  const Audio audio = decode(recording(shape), {.sampling_rate = 0});
  EXPECT_EQ(audio.sampling_rate, 22050);
  EXPECT_EQ(audio.samples.size(), 22050U);
}

TEST(Decode, ReadsAPart) {
  for (const int format : {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_FLAC | SF_FORMAT_PCM_16,
                           SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, SF_FORMAT_OGG | SF_FORMAT_VORBIS}) {
    RecordingShape shape;
    shape.format = format;
    shape.rate = 48000;
    shape.seconds = 3;
    const std::string bytes = recording(shape);
    const Audio audio = decode(bytes, {.start = 1.25, .seconds = 0.5});
    EXPECT_EQ(audio.samples.size(), 8000U) << format;
    EXPECT_LT(sine_error(audio, shape.hertz, 0.5F, -1.25), 5e-2) << format;
    EXPECT_THAT(failure_of(bytes, {.start = 3.5}), HasSubstr("lasts 3.00 s"));
    EXPECT_THAT(failure_of(bytes, {.start = 2, .seconds = 2}), HasSubstr("a part of 2.00 s from 2.00 s on"));
  }
}

TEST(Decode, ChangesSpeedAndPitch) {
  RecordingShape shape;
  shape.rate = 44100;
  const Audio audio = decode(recording(shape), {.speed = 1.1});
  EXPECT_NEAR(static_cast<double>(audio.samples.size()), 16000 / 1.1, 1);
  EXPECT_LT(sine_error(audio, 484, 0.5F), 1e-4);
}

TEST(Decode, KnowsFilesByTheirContent) {
  const std::string path = testing::TempDir() + "/convoy_really_flac.mp3";
  RecordingShape shape;
  shape.format = SF_FORMAT_FLAC | SF_FORMAT_PCM_16;
  std::ofstream(path, std::ios::binary) << recording(shape);
  const Audio audio = decode_audio(std::filesystem::path(path));
  EXPECT_THAT(audio.source.format, HasSubstr("FLAC"));
  EXPECT_LT(sine_error(audio, shape.hertz, 0.5F), 1e-4);
  std::filesystem::remove(path);
  try {
    decode_audio(std::filesystem::path(path));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kStorage);
    EXPECT_THAT(error.what(), HasSubstr("convoy_really_flac.mp3"));
  }
}

TEST(Decode, RefusesWhatIsNoRecording) {
  EXPECT_THAT(failure_of(""), HasSubstr("the file is empty"));
  EXPECT_THAT(failure_of("R"), HasSubstr("not a recording"));
  EXPECT_THAT(failure_of("RIFF"), HasSubstr("not a recording"));
  EXPECT_THAT(failure_of("some text that is no sound at all"), HasSubstr("not a recording"));
  EXPECT_THAT(failure_of(std::string("\0\0\0\x20", 4) + "ftypM4A and so on"), HasSubstr("MP4 or M4A"));
  EXPECT_THAT(failure_of("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git lfs pull"));
}

TEST(Decode, RefusesNoSamples) {
  for (const int format : {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_FLAC | SF_FORMAT_PCM_16}) {
    RecordingShape shape;
    shape.format = format;
    shape.seconds = 0;
    EXPECT_THAT(failure_of(recording(shape)), testing::AnyOf(HasSubstr("no samples"), HasSubstr("the file is empty")));
  }
}

TEST(Decode, SaysWhenARecordingIsCutShort) {
  for (const int format :
       {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_FLAC | SF_FORMAT_PCM_16, SF_FORMAT_OGG | SF_FORMAT_VORBIS,
        SF_FORMAT_OGG | SF_FORMAT_OPUS, SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III}) {
    RecordingShape shape;
    shape.format = format;
    shape.rate = 48000;
    shape.seconds = 10;
    const std::string whole = recording(shape);
    const std::string half = whole.substr(0, whole.size() / 2);
    EXPECT_THAT(failure_of(half), HasSubstr("cut short")) << format;
    const Audio audio = decode(half, {.allow_truncated = true});
    EXPECT_TRUE(audio.truncated) << format;
    EXPECT_GT(audio.seconds(), 1) << format;
    EXPECT_LT(audio.seconds(), 9) << format;
    EXPECT_FALSE(decode(whole).truncated) << format;
  }
}

TEST(Decode, TakesAWavWithoutAStatedLength) {
  std::string bytes = recording({});
  bytes.replace(bytes.find("data") + 4, 4, "\xff\xff\xff\xff");
  EXPECT_EQ(decode(bytes).samples.size(), 16000U);
}

TEST(Decode, RefusesValuesThatAreNotFinite) {
  RecordingShape shape;
  shape.format = SF_FORMAT_WAV | SF_FORMAT_FLOAT;
  std::vector<float> samples(100, 0.5F);
  samples[70] = std::nanf("");
  EXPECT_THAT(failure_of(write_recording(shape, samples)), HasSubstr("sample 70 is not a finite number"));
}

TEST(Decode, DamagedBytesGiveErrorsOrSamples) {
  RandomStream random(11, 0);
  for (const int format :
       {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_WAVEX | SF_FORMAT_PCM_24, SF_FORMAT_FLAC | SF_FORMAT_PCM_16,
        SF_FORMAT_OGG | SF_FORMAT_VORBIS, SF_FORMAT_OGG | SF_FORMAT_OPUS, SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III}) {
    RecordingShape shape;
    shape.format = format;
    shape.rate = 48000;
    shape.seconds = 0.3;
    const std::string whole = recording(shape);
    for (int i = 0; i < 60; ++i) {
      std::string bytes = whole;
      const std::size_t region = i % 2 == 0 ? std::min<std::size_t>(bytes.size(), 128) : bytes.size();
      for (std::uint64_t flips = 1 + random.below(8); flips > 0; --flips)
        bytes[random.below(region)] = static_cast<char>(random.below(256));
      if (i % 5 == 0) bytes.resize(random.below(bytes.size()));
      try {
        const Audio audio = decode(bytes, {.max_seconds = 60, .allow_truncated = i % 3 == 0});
        EXPECT_FALSE(audio.samples.empty());
        EXPECT_LE(audio.seconds(), 61);
      } catch (const Error& error) {
        EXPECT_EQ(error.status(), Status::kData) << error.what();
      }
    }
  }
}

TEST(Decode, RefusesRatesOfDamagedHeaders) {
  RecordingShape shape;
  std::string bytes = recording(shape);
  bytes.replace(24, 4, std::string("\x01\0\0\0", 4));
  EXPECT_THAT(failure_of(bytes), HasSubstr("1 Hz"));
}

TEST(Decode, ASilentRecordingIsValid) {
  RecordingShape shape;
  shape.gains = {0.0F};
  EXPECT_TRUE(decode(recording(shape)).silent());
  EXPECT_FALSE(decode(recording({})).silent());
}

TEST(Decode, ThreeHours) {
  RecordingShape shape;
  shape.format = SF_FORMAT_WAV | SF_FORMAT_PCM_U8;
  shape.rate = 8000;
  // One second, again and again; 440 whole periods of it.
  std::string bytes = recording(shape);
  const std::size_t data = bytes.find("data") + 8;
  const std::string second = bytes.substr(data, 8000);
  bytes.resize(data);
  for (int i = 0; i < 3 * 3600; ++i) bytes += second;
  const std::uint32_t size = 3 * 3600 * 8000, all = static_cast<std::uint32_t>(bytes.size() - 8);
  std::memcpy(bytes.data() + data - 4, &size, 4);
  std::memcpy(bytes.data() + 4, &all, 4);
  EXPECT_THAT(failure_of(bytes, {.max_seconds = 30}),
              HasSubstr("the recording lasts 3:00:00, over the limit of 30.00 s"));
  EXPECT_EQ(decode(bytes).samples.size(), std::size_t{3} * 3600 * 16000);
  // The last second alone: it is found without holding the rest.
  const Audio last = decode(bytes, {.start = 3 * 3600 - 1});
  EXPECT_EQ(last.samples.size(), 16000U);
  EXPECT_LT(sine_error(last, shape.hertz, 0.5F), 1e-2);
}

TEST(Resample, DoesNotDependOnHowTheInputIsCut) {
  const std::vector<float> wave = sine(440, 44100, 1);
  const std::vector<float> whole = resample(wave, 44100, 16000);
  Resampler resampler(44100, 16000);
  std::vector<float> parts;
  for (std::size_t at = 0, n = 1; at < wave.size(); at += n, n = n % 977 + 31) {
    resampler.add(std::span(wave).subspan(at, std::min(n, wave.size() - at)), parts);
  }
  resampler.finish(parts);
  EXPECT_EQ(whole, parts);
  EXPECT_EQ(whole.size(), 16000U);
}

TEST(Resample, TakesOffWhatTheLowerRateCannotHold) {
  const std::vector<float> low = resample(sine(10000, 48000, 1), 48000, 16000);
  double worst = 0;
  for (std::size_t i = 1600; i + 1600 < low.size(); ++i) worst = std::max<double>(worst, std::abs(low[i]));
  EXPECT_LT(worst, 1e-5);
}

TEST(Resample, RefusesImpossibleRates) {
  EXPECT_THROW(Resampler(0, 16000), Error);
  EXPECT_THROW(Resampler(16000, -1), Error);
  EXPECT_THROW(Resampler(1, 16000), Error);
  EXPECT_THROW(Resampler(std::nan(""), 16000), Error);
}

}  // namespace
}  // namespace convoy
