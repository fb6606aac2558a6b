// The data of models that hear: recordings and their transcripts as documents of tokens, and the features of a
// micro-batch's recordings.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "audio/log_mel.h"
#include "config/run_config.h"
#include "data/loader.h"
#include "text/tokenizer.h"
#include "train/run_setup.h"

namespace convoy {

// A line of a manifest.
struct Utterance {
  std::string audio;     // file
  std::string text;      // transcript
  std::string language;  // "en"; "" = the run's
  std::string where;     // "file:line"
};

// JSONL: {"audio": FILE, "text": TRANSCRIPT, "language": …}; files are relative to the manifest's folder. Throws data
// errors with file and line.
std::vector<Utterance> read_manifest(const std::filesystem::path& file);

// The tokens around a transcript.
class SpeechPrompt {
 public:
  // Throws a usage error where the tokenizer lacks a token of the model's format.
  SpeechPrompt(const RunConfig& config, const Tokenizer& tokenizer, const ModelSource& source);
  // What the model continues. `places` = audio tokens (models whose text has places for audio).
  std::vector<TokenId> prompt(const std::string& language, std::int64_t places) const;
  // Prompt, transcript and the token that ends it. Targets: Whisper, all but the first, as transformers trains it; else
  // transcript and end.
  EncodedSample encode(const Utterance& utterance, std::int64_t places) const;
  TokenId end() const { return end_; }

 private:
  TokenId required(const std::string& token) const;

  const Tokenizer& tokenizer_;
  bool whisper_;
  std::string language_, task_;
  TokenId start_ = 0, end_ = 0, audio_ = -1;
  std::vector<TokenId> before_, after_;  // the places for audio
};

// Features in the form of the batch input "audio_features".
class SpeechFeatures {
 public:
  SpeechFeatures(const AudioInput& input, std::int64_t windows, std::int64_t frames);
  // Seconds of a window.
  double window_seconds() const;
  std::int64_t windows_of(std::int64_t samples) const;
  // Places in the text for a clip of so many samples at 16 kHz.
  std::int64_t places(std::int64_t samples) const;
  // Samples at 16 kHz that a file will give, from its header where that says. Throws data errors.
  static std::int64_t count_samples(const std::string& file);
  static std::vector<float> read(const std::string& file);
  // Writes the windows of a clip, time by time, from `row` on ([windows·frames, bins] of zeros before).
  void write(std::span<const float> samples, std::span<float> row) const;
  const AudioInput& input() const { return input_; }
  std::int64_t row_floats() const { return windows_ * frames_ * input_.mel_bins; }

 private:
  AudioInput input_;
  std::int64_t windows_, frames_;
  LogMel log_mel_;
};

// The recordings behind the documents of a TokenData.
class SpeechSource {
 public:
  SpeechSource(std::shared_ptr<const SpeechFeatures> features, std::vector<Utterance> utterances)
      : features_(std::move(features)), utterances_(std::move(utterances)) {}
  // Adds features and places to a micro-batch that holds one document in each row.
  void complete(Batch& batch) const;

 private:
  std::shared_ptr<const SpeechFeatures> features_;
  std::vector<Utterance> utterances_;  // by document
};

struct SpeechData {
  std::shared_ptr<const TokenData> tokens;
  std::shared_ptr<const SpeechSource> source;
};

// Reads the manifests of a key and the headers of their recordings. A recording or transcript that does not fit is a
// data error, or left out and counted with skip_bad_samples.
SpeechData open_speech(const RunConfig& config, const std::string& key, const Tokenizer& tokenizer,
                       const ModelSource& source, const TrainShape& shape);

}  // namespace convoy
