// Recordings to mono samples: WAV, FLAC, Ogg Vorbis, Opus, MP3, AIFF, AU and CAF (libsndfile), told apart by their
// content, never by a file's name; any sampling rate, sample width and number of channels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace convoy {

struct AudioInfo {
  int sampling_rate = 0;  // Hz
  int channels = 0;
  std::int64_t frames = -1;  // samples per channel that the header states; -1: it does not say
  std::string format;        // such as "WAV, 24 bit PCM"
  double seconds() const { return frames < 0 ? -1.0 : static_cast<double>(frames) / sampling_rate; }
};

struct DecodeOptions {
  int sampling_rate = 16000;     // of the result; 0: as the recording has it
  double speed = 1;              // the result lasts 1 / speed as long (and its pitch rises by it)
  double start = 0;              // seconds of the recording to pass over
  double seconds = 0;            // of the recording to read from there; 0: to its end
  double max_seconds = 0;        // a longer recording (or part) is a data error; 0: any length
  bool allow_truncated = false;  // a recording that is cut short gives what is there, instead of a data error
};

struct Audio {
  std::vector<float> samples;  // mono (the mean of the channels), full scale ±1
  int sampling_rate = 0;       // Hz
  AudioInfo source;            // what it was made from
  bool truncated = false;      // less was there than the recording promises; only with allow_truncated
  double seconds() const { return static_cast<double>(samples.size()) / sampling_rate; }
  // Nothing but zeros: valid, and rarely meant.
  bool silent() const;
};

// What the header says; a few microseconds, for MP3 without a length in its header a scan of the whole.
// Throws what decode_audio does.
AudioInfo probe_audio(std::span<const std::byte> bytes, const std::string& name);

// `name` goes into errors. Throws a data error for bytes that are no recording (or of a kind that is not read: M4A,
// AAC, WMA), hold no samples, end early, are not finite, or last longer than allowed. Memory: the result, and a few
// blocks.
Audio decode_audio(std::span<const std::byte> bytes, const std::string& name, const DecodeOptions& options = {});
// A whole file. Also throws a storage error where it cannot be read.
Audio decode_audio(const std::filesystem::path& file, const DecodeOptions& options = {});

}  // namespace convoy
