#include "train/speech_data.h"

#include <fmt/format.h>

#include <cmath>

#include "audio/manifest.h"
#include "base/error.h"
#include "base/hash.h"
#include "config/resolve.h"

namespace convoy {
namespace {

void require_fit(bool fits, const std::string& what, const std::string& remedy) {
  if (!fits) throw data_error(what).mend(remedy);
}

// Places for audio need the exact number of samples, which a manifest's duration may round.
EncodedSample encode_utterance(const Utterance& utterance, const SpeechPrompt& prompt, const SpeechFeatures& features,
                               const TrainShape& shape) {
  const auto samples = static_cast<std::int64_t>(std::llround(utterance.duration * kSpeechRate));
  const std::int64_t windows = features.windows_of(samples);
  require_fit(windows <= shape.audio_windows,
              fmt::format("the recording lasts {:.2f} s, longer than {} window(s) of {} s", utterance.duration,
                          shape.audio_windows, features.window_seconds()),
              features.input().audio_token < 0 ? "cut it, or leave it out with skip_bad_samples"
                                               : "raise audio_windows, or leave it out with skip_bad_samples");
  const std::int64_t places = features.places(samples);
  require_fit(features.input().audio_token < 0 || places > 0, "the recording is too short to give a row of audio",
              "leave it out with skip_bad_samples");
  EncodedSample sample = prompt.encode(utterance.text, utterance.language, places);
  require_fit(
      static_cast<std::int64_t>(sample.ids.size()) <= shape.seq,
      fmt::format("prompt and transcript are {} tokens, longer than seq_length {}", sample.ids.size(), shape.seq),
      "raise seq_length, or leave it out with skip_bad_samples");
  return sample;
}

std::vector<Utterance> read_all(const RunConfig& config, const std::string& key, bool exact, DataReport& report) {
  ManifestOptions options;
  options.skip_bad_samples = config.skip_bad_samples;
  std::vector<Utterance> all;
  for (const std::filesystem::path& path : resolve_files(config, key)) {
    std::vector<Utterance> some = read_manifest(path, options, &report);
    all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  if (exact) {
    for (Utterance& utterance : all) utterance.duration = -1;
  }
  measure_durations(all, config.skip_bad_samples, &report);
  return all;
}

}  // namespace

void SpeechSource::complete(Batch& batch) const {
  const std::int64_t floats = features_->row_floats();
  batch.audio_features.assign(static_cast<std::size_t>(batch.rows * floats), 0.0f);
  const AudioInput& input = features_->input();
  if (input.audio_token >= 0) batch.audio_rows.assign(static_cast<std::size_t>(batch.tokens()), -1);
  const std::int64_t places = input.audio_token < 0 ? 0 : floats / input.mel_bins / input.frames_per_token;
  for (std::size_t r = 0; r < batch.samples.size(); ++r) {
    const Utterance& utterance = utterances_[static_cast<std::size_t>(batch.samples[r])];
    const auto at = static_cast<std::int64_t>(r);
    DecodeOptions decoding;
    decoding.sampling_rate = kSpeechRate;
    features_->write(reader_.decode(utterance, decoding).samples,
                     std::span(batch.audio_features)
                         .subspan(static_cast<std::size_t>(at * floats), static_cast<std::size_t>(floats)));
    if (input.audio_token < 0) continue;
    std::int64_t next = at * places;
    for (std::int64_t t = at * batch.seq; t < (at + 1) * batch.seq; ++t) {
      if (batch.input_ids[static_cast<std::size_t>(t)] != input.audio_token) continue;
      check(next < (at + 1) * places, "more places for audio than rows of it");
      batch.audio_rows[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(next++);
    }
  }
}

SpeechData open_speech(const RunConfig& config, const std::string& key, const Tokenizer& tokenizer,
                       const ModelSource& source, const TrainShape& shape) {
  const AudioInput input = source.model->audio().value();
  const SpeechPrompt prompt(tokenizer, input, *source.config, source.where,
                            {config.audio_language.value_or(""), config.audio_task, false});
  auto features = std::make_shared<const SpeechFeatures>(input, shape.audio_windows, shape.audio_frames);
  DataReport report;
  Hasher hasher;
  hasher.add(fmt::format("{:016x} {} {} {}", tokenizer.fingerprint(), shape.audio_windows, shape.audio_frames,
                         config.audio_language.value_or("")));
  std::vector<Utterance> kept;
  std::vector<EncodedSample> samples;
  for (Utterance& utterance : read_all(config, key, input.audio_token >= 0, report)) {
    try {
      samples.push_back(encode_utterance(utterance, prompt, *features, shape));
    } catch (Error& error) {
      if (!config.skip_bad_samples) throw error.at(utterance.where);
      --report.samples;  // it was one when the manifest was read
      report.skip("audio", utterance.where, error.what());
      continue;
    }
    hasher.add(fmt::format("{} {} {} {}\n{}\n{}\n", utterance.audio, utterance.offset, utterance.start,
                           utterance.seconds, utterance.text, utterance.language));
    report.tokens += static_cast<std::int64_t>(samples.back().ids.size());
    report.targets += count_targets(samples.back());
    kept.push_back(std::move(utterance));
  }
  std::string bytes;
  TokenWriter writer(
      [&](std::span<const std::byte> part) { bytes.append(reinterpret_cast<const char*>(part.data()), part.size()); },
      source.model->vocab_size(), hasher.value());
  for (const EncodedSample& sample : samples) writer.add(sample);
  writer.finish(report);
  return {TokenData::from_memory(std::move(bytes), "speech manifest"),
          std::make_shared<const SpeechSource>(std::move(features), std::move(kept))};
}

}  // namespace convoy
