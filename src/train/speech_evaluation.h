// Error rates during training (predict_with_generate): what the model writes down of the evaluation's recordings,
// beside what was said in them.
#pragma once

#include <memory>
#include <span>

#include "comm/communicator.h"
#include "config/run_config.h"
#include "text/error_rate.h"
#include "train/speech_data.h"
#include "train/transcriber.h"

namespace convoy {

// Of words (Chinese and Japanese characters count as words) and of characters without spaces, over all recordings.
struct SpeechErrors {
  EditCounts words, characters;
  // Adds a transcript. `normalization` as TextNormalization::named.
  void add(const std::string& said, const std::string& heard, const std::string& normalization);
  SpeechErrors& operator+=(const SpeechErrors& other);
};

// The room of a transcriber for a run: rows of seq_length tokens, per_device_eval_batch_size recordings at once.
GeneratorRoom prediction_room(const RunConfig& config, const ModelSource& source, const TrainShape& shape);

class SpeechEvaluation {
 public:
  // All must outlive it. It holds the model's whole weights and generator_bytes(prediction_room()) in all.
  SpeechEvaluation(const RunConfig& config, Device& device, const ModelSource& source, const TrainShape& shape,
                   const Tokenizer& tokenizer, Communicator& communicator);

  // Of these recordings, with the weights as they are now. The ranks share them; all must call, and get the sum. A
  // recording that cannot be read is an error, or left out with skip_bad_samples.
  SpeechErrors run(const ParameterStore& weights, const SpeechSource& speech, std::span<const DocumentId> documents);

 private:
  void take_weights(const ParameterStore& weights);
  SpeechErrors transcribe(const SpeechSource& speech, std::span<const DocumentId> documents);

  const RunConfig& config_;
  const ModelSource& source_;
  Communicator& communicator_;
  std::unique_ptr<Transcriber> transcriber_;
};

}  // namespace convoy
