// The data of models that hear: recordings and their transcripts as documents of tokens, and the features of a
// micro-batch's recordings.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "audio/utterance.h"
#include "config/run_config.h"
#include "data/loader.h"
#include "text/tokenizer.h"
#include "train/run_setup.h"
#include "train/speech_prompt.h"

namespace convoy {

// The recordings behind the documents of a TokenData.
class SpeechSource {
 public:
  SpeechSource(std::shared_ptr<const SpeechFeatures> features, std::vector<Utterance> utterances)
      : features_(std::move(features)), utterances_(std::move(utterances)) {}
  // Adds features and places to a micro-batch that holds one document in each row.
  void complete(Batch& batch) const;
  const std::vector<Utterance>& utterances() const { return utterances_; }  // by document

 private:
  std::shared_ptr<const SpeechFeatures> features_;
  std::vector<Utterance> utterances_;
  UtteranceReader reader_;
};

struct SpeechData {
  std::shared_ptr<const TokenData> tokens;
  std::shared_ptr<const SpeechSource> source;
};

// Reads the manifests of a key (every kind that audio/manifest.h knows) and the headers of their recordings. A
// recording or transcript that does not fit is a data error, or left out and counted with skip_bad_samples.
SpeechData open_speech(const RunConfig& config, const std::string& key, const Tokenizer& tokenizer,
                       const ModelSource& source, const TrainShape& shape);

}  // namespace convoy
