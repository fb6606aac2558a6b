#include "train/speech_evaluation.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "train/keep_alive.h"

namespace convoy {

void SpeechErrors::add(const std::string& said, const std::string& heard, const std::string& normalization) {
  TextNormalization how = TextNormalization::named(normalization);
  words += count_edits(normalize_text(said, how), normalize_text(heard, how), ErrorUnit::kMixed);
  how.drop_spaces = true;  // where words end is not heard in Chinese
  characters += count_edits(normalize_text(said, how), normalize_text(heard, how), ErrorUnit::kCharacter);
}

SpeechErrors& SpeechErrors::operator+=(const SpeechErrors& other) {
  words += other.words;
  characters += other.characters;
  return *this;
}

GeneratorRoom prediction_room(const RunConfig& config, const ModelSource& source, const TrainShape& shape) {
  GeneratorRoom room;
  room.dtype = source.dtype;
  room.max_length = sequence_length(config, *source.model);  // not a bucket's
  room.batch = config.per_device_eval_batch_size;
  room.beams = config.generation_num_beams;
  room.audio_windows = source.model->audio()->audio_token < 0 ? 1 : config.audio_windows;
  room.cache = !shape.has_own_memory;
  return room;
}

SpeechEvaluation::SpeechEvaluation(const RunConfig& config, Device& device, const ModelSource& source,
                                   const TrainShape& shape, const Tokenizer& tokenizer, Communicator& communicator)
    : config_(config), source_(source), communicator_(communicator) {
  const GeneratorRoom room = prediction_room(config, source, shape);
  TranscriberOptions options;
  options.dtype = room.dtype;
  options.language = config.audio_language.value_or("none");
  options.task = config.audio_task;
  options.batch = room.batch;
  options.beams = room.beams;
  options.windows = room.audio_windows;
  options.max_length = room.max_length;
  options.max_new_tokens = config.generation_max_length.value_or(0);
  options.cache = room.cache;
  transcriber_ = std::make_unique<Transcriber>(device, *source.model, tokenizer, *source.config, *source.config,
                                               source.where, options);
}

void SpeechEvaluation::take_weights(const ParameterStore& weights) {
  for (std::size_t p = 0; p < source_.model->parameters().size(); ++p)
    transcriber_->store().set_rows(p, 0, source_.dtype, weights.gather(p, source_.dtype, communicator_));
}

SpeechErrors SpeechEvaluation::transcribe(const SpeechSource& speech, std::span<const DocumentId> documents) {
  const UtteranceReader reader;
  DecodeOptions decoding;
  decoding.sampling_rate = kSpeechRate;
  const auto step = static_cast<std::size_t>(communicator_.size());
  auto place = static_cast<std::size_t>(communicator_.rank());
  std::vector<const Utterance*> taken;
  const auto next = [&]() -> std::optional<Clip> {
    for (; place < documents.size(); place += step) {
      const Utterance& utterance = speech.utterances()[static_cast<std::size_t>(documents[place])];
      try {
        Clip clip{reader.decode(utterance, decoding).samples, utterance.language};
        taken.push_back(&utterance);
        place += step;
        return clip;
      } catch (const Error& error) {
        if (!config_.skip_bad_samples || error.status() == Status::kInternal) throw;
        log_warning("left out: {}", error.what());
      }
    }
    return std::nullopt;
  };
  SpeechErrors errors;
  transcriber_->transcribe(next, [&](std::size_t index, const Transcript& heard) {
    errors.add(taken[index]->text, heard.text, config_.error_rate_normalization);
  });
  return errors;
}

SpeechErrors SpeechEvaluation::run(const ParameterStore& weights, const SpeechSource& speech,
                                   std::span<const DocumentId> documents) {
  take_weights(weights);
  const KeepAlive keep_alive(communicator_);  // writing takes the ranks as long as it takes
  const SpeechErrors mine = transcribe(speech, documents);
  SpeechErrors all;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    SpeechErrors theirs = mine;
    communicator_.broadcast(std::as_writable_bytes(std::span(&theirs, 1)), rank);
    all += theirs;
  }
  return all;
}

}  // namespace convoy
