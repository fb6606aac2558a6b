// What models that hear are given beside the transcript: the tokens around it, and the recording's features.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "audio/log_mel.h"
#include "data/encode.h"
#include "models/model.h"
#include "text/tokenizer.h"

namespace convoy {

inline constexpr int kSpeechRate = 16000;  // Hz, of all models that hear

struct SpeechPromptOptions {
  std::string language;             // of recordings whose manifest does not say; "en"
  std::string task = "transcribe";  // or "translate"; Whisper, beside a language
  bool timestamps = false;          // Whisper: the transcript has times, so that no <|notimestamps|> stands before it
};

// The tokens around a transcript.
class SpeechPrompt {
 public:
  // `config` is the model's, read from `where`. Throws a usage error where the tokenizer lacks a token of the model's
  // format.
  SpeechPrompt(const Tokenizer& tokenizer, const AudioInput& input, const Json& config, const std::string& where,
               SpeechPromptOptions options);
  // What the model continues. `language` "" is the options'. `places` = audio tokens (models whose text has places for
  // audio).
  std::vector<TokenId> prompt(const std::string& language, std::int64_t places) const;
  // Prompt, transcript and the token that ends it. Targets: Whisper, all but the first, as transformers trains it; else
  // transcript and end.
  EncodedSample encode(const std::string& text, const std::string& language, std::int64_t places) const;
  TokenId start() const { return start_; }
  TokenId end() const { return end_; }
  bool whisper() const { return whisper_; }
  const SpeechPromptOptions& options() const { return options_; }

 private:
  TokenId required(const std::string& token) const;

  const Tokenizer& tokenizer_;
  SpeechPromptOptions options_;
  bool whisper_;
  TokenId start_ = 0, end_ = 0, audio_ = -1;
  std::vector<TokenId> before_, after_;  // the places for audio
};

// Features in the form of the batch input "audio_features".
class SpeechFeatures {
 public:
  // Clips of up to `windows` windows of `frames` log-mel frames.
  SpeechFeatures(const AudioInput& input, std::int64_t windows, std::int64_t frames);
  std::int64_t window_samples() const { return log_mel_.config().chunk_samples(); }
  double window_seconds() const { return static_cast<double>(window_samples()) / kSpeechRate; }
  std::int64_t windows_of(std::int64_t samples) const { return (samples + window_samples() - 1) / window_samples(); }
  // Places in the text for a clip of so many samples; 0 for models without.
  std::int64_t places(std::int64_t samples) const;
  // Writes the windows of a clip, time by time, to the front of `row` ([windows · frames, bins], zeros before).
  // `change` sees each window before that.
  void write(std::span<const float> samples, std::span<float> row,
             const std::function<void(Features& window, std::int64_t index)>& change = {}) const;
  // The same of a clip of one window, whose frames of silence at the end may be missing. `frames`: of the window; 0: as
  // many as planned.
  void write(const Features& window, std::span<float> row, std::int64_t frames = 0) const;
  const AudioInput& input() const { return input_; }
  const LogMelConfig& log_mel_config() const { return log_mel_.config(); }
  std::int64_t frames() const { return frames_; }
  std::int64_t windows() const { return windows_; }
  std::int64_t window_floats() const { return frames_ * input_.mel_bins; }
  std::int64_t row_floats() const { return windows_ * window_floats(); }

 private:
  AudioInput input_;
  std::int64_t windows_, frames_;
  LogMel log_mel_;
};

}  // namespace convoy
