// Whisper's log-mel features (Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022), as
// Hugging Face's WhisperFeatureExtractor computes them: Hann window, power spectrum, Slaney mel filters, log10, the
// clip's maximum minus 8 as floor, (x + 4) / 4.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"

namespace convoy {

// Names and defaults are those of preprocessor_config.json.
struct LogMelConfig {
  int feature_size = 80;      // mel bins
  int sampling_rate = 16000;  // Hz
  int hop_length = 160;       // samples from frame to frame
  int n_fft = 400;            // samples of a frame; even
  int chunk_length = 30;      // seconds of a padded clip
  bool do_normalize = false;  // samples to mean 0 and variance 1 first

  std::int64_t chunk_samples() const { return std::int64_t{chunk_length} * sampling_rate; }
  std::int64_t chunk_frames() const { return chunk_samples() / hop_length; }
  // Frames that hold sound, of a clip of so many samples: one per hop begun.
  std::int64_t valid_frames(std::int64_t samples) const { return (samples + hop_length - 1) / hop_length; }
  // Throws a usage error for values that make no sense.
  void validate() const;
  friend bool operator==(const LogMelConfig&, const LogMelConfig&) = default;
};

// From preprocessor_config.json, or from the "feature_extractor" of a processor_config.json. Throws a usage error that
// names the key for an extractor of another kind and for settings that are not provided for (dither).
LogMelConfig read_log_mel_config(const Json& json, const std::string& name);
// Of a model's folder: preprocessor_config.json, else processor_config.json.
LogMelConfig read_log_mel_config(const std::filesystem::path& folder);

// Log-mel values of one clip, [bins, frames] row-major: bin 0's frames first. Frames from valid_frames on are padding
// (the mask of Hugging Face's extractor has valid_frames ones and then zeros).
struct Features {
  std::int64_t bins = 0, frames = 0, valid_frames = 0;
  float silence = 0;  // what frames further on would be, when zeros follow the clip
  std::vector<float> values;
};

// Holds the tables; const calls may come from many threads at once.
class LogMel {
 public:
  explicit LogMel(const LogMelConfig& config);
  ~LogMel();
  LogMel(LogMel&&) noexcept;
  LogMel& operator=(LogMel&&) noexcept;

  const LogMelConfig& config() const;
  // The mel filters, [feature_size, n_fft / 2 + 1].
  std::vector<float> filters() const;

  // Padded with zeros to chunk_length seconds: [feature_size, chunk_frames()]. More samples than that are a data error
  // (cut them first, or use windows()).
  Features padded(std::span<const float> samples) const;
  // Only the frames that hold sound: the first valid_frames() of padded(), to the bit. Any length but 0.
  Features unpadded(std::span<const float> samples) const;
  // The frames that see sound: up to two more than unpadded(), and no more than padded(). With `silence` behind them
  // they are the beginning of padded(), to any length.
  Features sounding(std::span<const float> samples) const;
  // A clip of any length as consecutive chunks, each made by padded() on its own, as GLM-ASR's processor does.
  std::vector<Features> windows(std::span<const float> samples) const;

 private:
  std::int64_t total_samples(std::int64_t samples) const;
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

}  // namespace convoy
