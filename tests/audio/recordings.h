// Recordings made for the tests, written by libsndfile into memory.
#pragma once

#include <sndfile.h>

#include <cmath>
#include <cstring>
#include <numbers>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace convoy {

struct RecordingShape {
  int format = SF_FORMAT_WAV | SF_FORMAT_PCM_16;
  int rate = 16000, channels = 1;
  double seconds = 1;
  double hertz = 440;
  std::vector<float> gains = {0.5F};  // of the channels; the last one serves the rest
};

// A memory file that libsndfile writes to.
struct WrittenFile {
  std::string bytes;
  sf_count_t at = 0;
  static WrittenFile& of(void* user) { return *static_cast<WrittenFile*>(user); }
  static sf_count_t length(void* user) { return static_cast<sf_count_t>(of(user).bytes.size()); }
  static sf_count_t tell(void* user) { return of(user).at; }
  static sf_count_t seek(sf_count_t offset, int whence, void* user) {
    return of(user).at = offset + (whence == SEEK_SET ? 0 : whence == SEEK_CUR ? of(user).at : length(user));
  }
  static sf_count_t read(void* to, sf_count_t count, void* user) {
    WrittenFile& f = of(user);
    const sf_count_t n = std::min(count, length(user) - f.at);
    std::memcpy(to, f.bytes.data() + f.at, static_cast<std::size_t>(n));
    f.at += n;
    return n;
  }
  static sf_count_t write(const void* from, sf_count_t count, void* user) {
    WrittenFile& f = of(user);
    if (f.at + count > length(user)) f.bytes.resize(static_cast<std::size_t>(f.at + count));
    std::memcpy(f.bytes.data() + f.at, from, static_cast<std::size_t>(count));
    f.at += count;
    return count;
  }
};

// `samples` are interleaved.
inline std::string write_recording(const RecordingShape& shape, std::span<const float> samples) {
  WrittenFile file;
  SF_VIRTUAL_IO io{WrittenFile::length, WrittenFile::seek, WrittenFile::read, WrittenFile::write, WrittenFile::tell};
  SF_INFO info{};
  info.samplerate = shape.rate;
  info.channels = shape.channels;
  info.format = shape.format;
  SNDFILE* out = sf_open_virtual(&io, SFM_WRITE, &info, &file);
  if (out == nullptr) throw std::runtime_error(sf_strerror(nullptr));
  // In pieces: one large block of Vorbis overflows the stack of its encoder.
  const std::size_t piece = 4096 * static_cast<std::size_t>(shape.channels);
  for (std::size_t at = 0; at < samples.size(); at += piece) {
    const std::size_t n = std::min(piece, samples.size() - at);
    sf_writef_float(out, samples.data() + at, static_cast<sf_count_t>(n) / shape.channels);
  }
  sf_close(out);
  return file.bytes;
}

inline std::vector<float> sine(double hertz, double rate, double seconds, float gain = 0.5F) {
  std::vector<float> samples(static_cast<std::size_t>(std::llround(seconds * rate)));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i] = gain * static_cast<float>(std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / rate));
  }
  return samples;
}

// A sine wave.
inline std::string recording(const RecordingShape& shape) {
  const std::vector<float> wave = sine(shape.hertz, shape.rate, shape.seconds, 1);
  std::vector<float> samples;
  for (const float value : wave) {
    for (int c = 0; c < shape.channels; ++c) {
      samples.push_back(value * shape.gains[std::min(static_cast<std::size_t>(c), shape.gains.size() - 1)]);
    }
  }
  return write_recording(shape, samples);
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace convoy
