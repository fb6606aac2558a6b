// The data of models that hear: recordings and their transcripts as documents of tokens, and the features of a
// micro-batch's recordings.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "audio/feature_loader.h"
#include "config/run_config.h"
#include "data/loader.h"
#include "text/tokenizer.h"
#include "train/run_setup.h"
#include "train/speech_prompt.h"

namespace convoy {

struct SpeechSourceOptions {
  FeatureOptions features = {};
  int threads = 1;
  // A recording that turns out to be unreadable leaves a row without features and targets, instead of an error.
  bool skip_bad_audio = false;
};

// What a document needs of a row, at its slowest speed.
struct SpeechSize {
  std::int64_t frames = 0;  // log-mel frames from the first to the last that sound touches
  std::int64_t sound = 0;   // those that hold sound, as recorded
  std::int64_t tokens = 0;
};

// The recordings behind the documents of a TokenData.
class SpeechSource {
 public:
  SpeechSource(std::shared_ptr<const SpeechFeatures> features, std::vector<Utterance> utterances,
               SpeechSourceOptions options = {}, std::vector<SpeechSize> sizes = {});
  // Adds features and places to a micro-batch that holds one document in each row. Where speed changes a recording's
  // places in the text, its row is made anew. Does not depend on the threads.
  void complete(Batch& batch) const { complete(batch, {features_->windows(), features_->frames()}); }
  // The same with rows of so many windows of so many frames: one, or several of as many frames as planned.
  struct RowShape {
    std::int64_t windows = 0, frames = 0;
  };
  void complete(Batch& batch, const RowShape& shape) const;
  const std::vector<Utterance>& utterances() const { return *utterances_; }  // by document
  const std::vector<SpeechSize>& sizes() const { return sizes_; }            // likewise

 private:
  void fill_row(Batch& batch, const RowShape& shape, std::int64_t row, std::int64_t sample) const;
  // Returns the frames that hold sound.
  std::int64_t fill_features(std::span<float> row, const RowShape& shape, std::int64_t sample, std::int64_t epoch,
                             double speed) const;

  std::shared_ptr<const SpeechFeatures> features_;
  std::shared_ptr<const std::vector<Utterance>> utterances_;
  SpeechSourceOptions options_;
  std::vector<SpeechSize> sizes_;
  UtteranceReader reader_;
  FeatureMaker maker_;
};

struct SpeechData {
  std::shared_ptr<const TokenData> tokens;
  std::shared_ptr<const SpeechSource> source;
};

// The numbers of a setting, each in an item of its own or several with commas between them. Throws a usage error with
// the remedy.
std::vector<double> numbers_of(const RunConfig& config, const std::string& key, const std::vector<std::string>& items,
                               const std::string& remedy);

// Reads the manifests of a key (every kind that audio/manifest.h knows) and the headers of their recordings. A
// recording or transcript that does not fit is a data error, or left out and counted with skip_bad_samples. train_files
// are augmented as the settings say.
SpeechData open_speech(const RunConfig& config, const std::string& key, const Tokenizer& tokenizer,
                       const ModelSource& source, const TrainShape& shape);

}  // namespace convoy
