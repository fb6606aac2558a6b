#include "train/speech_data.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "audio/decode.h"
#include "base/error.h"
#include "base/hash.h"
#include "config/resolve.h"
#include "data/encode.h"
#include "data/input.h"

namespace convoy {
namespace {

constexpr int kRate = 16000;  // Hz, of all models
constexpr const char* kRequest = "Please transcribe this audio into text";

LogMelConfig log_mel_config(const AudioInput& input, std::int64_t frames) {
  LogMelConfig config;
  config.feature_size = static_cast<int>(input.mel_bins);
  const std::int64_t samples = frames * config.hop_length;
  if (samples % kRate != 0) {
    throw usage_error(fmt::format("windows of {} log-mel frames are {} s long; they should last whole seconds", frames,
                                  static_cast<double>(samples) / kRate))
        .mend("choose max_source_positions (or the encoder's max_position_embeddings) as a multiple of 50 (of 200)");
  }
  config.chunk_length = static_cast<int>(samples / kRate);
  return config;
}

std::string text_field(const Json& record, const char* key, const std::string& where, bool required) {
  const auto place = record.find(key);
  if (place == record.end() || place->is_null()) {
    if (!required) return {};
    throw data_error(fmt::format("the record has no '{}'", key))
        .at(where)
        .mend("a line of a speech manifest is {\"audio\": FILE, \"text\": TRANSCRIPT}");
  }
  if (!place->is_string()) throw data_error(fmt::format("'{}' should be a string", key)).at(where);
  return place->get<std::string>();
}

}  // namespace

std::vector<Utterance> read_manifest(const std::filesystem::path& file) {
  std::vector<Utterance> all;
  LineReader lines(open_stream(file), file.string());
  std::string_view line;
  while (lines.next(line)) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", file.string(), lines.number());
    Json record;
    try {
      record = parse_json(line, where);
    } catch (const Error& error) {
      throw data_error(fmt::format("not a line of JSON: {}", error.what())).at(where);
    }
    if (!record.is_object()) throw data_error("the record is not an object").at(where);
    Utterance made{text_field(record, "audio", where, true), text_field(record, "text", where, true),
                   text_field(record, "language", where, false), where};
    const std::filesystem::path path(made.audio);
    if (path.is_relative()) made.audio = (file.parent_path() / path).string();
    all.push_back(std::move(made));
  }
  return all;
}

SpeechPrompt::SpeechPrompt(const RunConfig& config, const Tokenizer& tokenizer, const ModelSource& source)
    : tokenizer_(tokenizer), language_(config.audio_language.value_or("")), task_(config.audio_task) {
  const AudioInput input = source.model->audio().value();
  whisper_ = input.audio_token < 0;
  if (whisper_) {
    if (const auto start = tokenizer.token_to_id("<|startoftranscript|>")) {
      start_ = *start;
    } else if (source.config->contains("decoder_start_token_id")) {
      start_ = (*source.config)["decoder_start_token_id"].get<TokenId>();
    } else {
      throw usage_error("neither the tokenizer nor config.json names the token that starts a transcript")
          .at(source.where)
          .mend("add <|startoftranscript|> to the tokenizer, or decoder_start_token_id to config.json");
    }
    end_ = required("<|endoftext|>");
    return;
  }
  audio_ = static_cast<TokenId>(input.audio_token);
  end_ = required("<|endoftext|>");
  EncodeOptions options;
  options.add_special_tokens = false;
  before_ = tokenizer.encode("<|user|>\n", options);
  before_.push_back(required("<|begin_of_audio|>"));
  after_.push_back(required("<|end_of_audio|>"));
  required("<|user|>");
  required("<|assistant|>");
  for (TokenId id : tokenizer.encode(fmt::format("<|user|>\n{}<|assistant|>\n", kRequest), options))
    after_.push_back(id);
}

TokenId SpeechPrompt::required(const std::string& token) const {
  const auto id = tokenizer_.token_to_id(token);
  if (id) return *id;
  throw usage_error(fmt::format("the tokenizer has no token {}, which the model's prompt needs", token))
      .mend("use the tokenizer that belongs to the model");
}

std::vector<TokenId> SpeechPrompt::prompt(const std::string& language, std::int64_t places) const {
  if (!whisper_) {
    std::vector<TokenId> ids = before_;
    ids.insert(ids.end(), static_cast<std::size_t>(places), audio_);
    ids.insert(ids.end(), after_.begin(), after_.end());
    return ids;
  }
  std::vector<TokenId> ids = {start_};
  const std::string& spoken = language.empty() ? language_ : language;
  if (!spoken.empty()) {
    ids.push_back(required("<|" + spoken + "|>"));
    ids.push_back(required("<|" + task_ + "|>"));
  }
  if (const auto plain = tokenizer_.token_to_id("<|notimestamps|>")) ids.push_back(*plain);
  return ids;
}

EncodedSample SpeechPrompt::encode(const Utterance& utterance, std::int64_t places) const {
  EncodedSample made;
  made.append(prompt(utterance.language, places), whisper_);
  EncodeOptions options;
  options.add_special_tokens = false;
  options.parse_special = false;
  made.append(tokenizer_.encode(utterance.text, options), true);
  made.append(end_, true);
  return made;
}

SpeechFeatures::SpeechFeatures(const AudioInput& input, std::int64_t windows, std::int64_t frames)
    : input_(input), windows_(windows), frames_(frames), log_mel_(log_mel_config(input, frames)) {}

double SpeechFeatures::window_seconds() const {
  return static_cast<double>(log_mel_.config().chunk_samples()) / kRate;
}

std::int64_t SpeechFeatures::windows_of(std::int64_t samples) const {
  const std::int64_t chunk = log_mel_.config().chunk_samples();
  return (samples + chunk - 1) / chunk;
}

std::int64_t SpeechFeatures::places(std::int64_t samples) const {
  if (input_.audio_token < 0) return 0;
  return (log_mel_.config().valid_frames(samples) + 1) / 2 / (input_.frames_per_token / 2);
}

std::int64_t SpeechFeatures::count_samples(const std::string& file) {
  const MappedFile bytes(file);
  const AudioInfo info = probe_audio(bytes.bytes(), file);
  if (info.frames < 0) return static_cast<std::int64_t>(read(file).size());
  const double samples = static_cast<double>(info.frames) * kRate / info.sampling_rate;
  return static_cast<std::int64_t>(samples + 0.5);
}

std::vector<float> SpeechFeatures::read(const std::string& file) {
  DecodeOptions options;
  options.sampling_rate = kRate;
  return decode_audio(std::filesystem::path(file), options).samples;
}

void SpeechFeatures::write(std::span<const float> samples, std::span<float> row) const {
  const std::vector<Features> windows = log_mel_.windows(samples);
  check(static_cast<std::int64_t>(windows.size()) <= windows_, "a recording of more windows than planned");
  for (std::size_t w = 0; w < windows.size(); ++w) {
    const Features& window = windows[w];
    check(window.bins == input_.mel_bins && window.frames == frames_, "features of another shape");
    float* to = row.data() + static_cast<std::int64_t>(w) * frames_ * window.bins;
    for (std::int64_t m = 0; m < window.bins; ++m) {
      const float* from = window.values.data() + m * window.frames;
      for (std::int64_t t = 0; t < window.frames; ++t) to[t * window.bins + m] = from[t];
    }
  }
}

void SpeechSource::complete(Batch& batch) const {
  const std::int64_t floats = features_->row_floats();
  batch.audio_features.assign(static_cast<std::size_t>(batch.rows * floats), 0.0f);
  const AudioInput& input = features_->input();
  if (input.audio_token >= 0) batch.audio_rows.assign(static_cast<std::size_t>(batch.tokens()), -1);
  const std::int64_t places = input.audio_token < 0 ? 0 : floats / input.mel_bins / input.frames_per_token;
  for (std::size_t r = 0; r < batch.samples.size(); ++r) {
    const Utterance& utterance = utterances_[static_cast<std::size_t>(batch.samples[r])];
    try {
      const auto at = static_cast<std::int64_t>(r);
      features_->write(SpeechFeatures::read(utterance.audio),
                       std::span(batch.audio_features)
                           .subspan(static_cast<std::size_t>(at * floats), static_cast<std::size_t>(floats)));
      if (input.audio_token < 0) continue;
      std::int64_t next = at * places;
      for (std::int64_t t = at * batch.seq; t < (at + 1) * batch.seq; ++t) {
        if (batch.input_ids[static_cast<std::size_t>(t)] != input.audio_token) continue;
        check(next < (at + 1) * places, "more places for audio than rows of it");
        batch.audio_rows[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(next++);
      }
    } catch (Error& error) {
      throw error.at(utterance.where);
    }
  }
}

namespace {

void require_fit(bool fits, const std::string& what, const std::string& remedy) {
  if (!fits) throw data_error(what).mend(remedy);
}

EncodedSample encode_utterance(const Utterance& utterance, const SpeechPrompt& prompt, const SpeechFeatures& features,
                               const TrainShape& shape) {
  const std::int64_t samples = SpeechFeatures::count_samples(utterance.audio);
  const std::int64_t windows = features.windows_of(samples);
  require_fit(windows <= shape.audio_windows,
              fmt::format("the recording lasts {:.2f} s, longer than {} window(s) of {} s",
                          static_cast<double>(samples) / kRate, shape.audio_windows, features.window_seconds()),
              features.input().audio_token < 0 ? "cut it, or leave it out with skip_bad_samples"
                                               : "raise audio_windows, or leave it out with skip_bad_samples");
  const std::int64_t places = features.places(samples);
  require_fit(features.input().audio_token < 0 || places > 0, "the recording is too short to give a row of audio",
              "leave it out with skip_bad_samples");
  EncodedSample sample = prompt.encode(utterance, places);
  require_fit(
      static_cast<std::int64_t>(sample.ids.size()) <= shape.seq,
      fmt::format("prompt and transcript are {} tokens, longer than seq_length {}", sample.ids.size(), shape.seq),
      "raise seq_length, or leave it out with skip_bad_samples");
  return sample;
}

}  // namespace

SpeechData open_speech(const RunConfig& config, const std::string& key, const Tokenizer& tokenizer,
                       const ModelSource& source, const TrainShape& shape) {
  const SpeechPrompt prompt(config, tokenizer, source);
  auto features =
      std::make_shared<const SpeechFeatures>(source.model->audio().value(), shape.audio_windows, shape.audio_frames);
  DataReport report;
  Hasher hasher;
  hasher.add(fmt::format("{:016x} {} {} {}", tokenizer.fingerprint(), shape.audio_windows, shape.audio_frames,
                         config.audio_language.value_or("")));
  std::vector<Utterance> kept;
  std::vector<EncodedSample> samples;
  for (const std::filesystem::path& file : resolve_files(config, key)) {
    ++report.files;
    for (Utterance& utterance : read_manifest(file)) {
      ++report.documents;
      try {
        samples.push_back(encode_utterance(utterance, prompt, *features, shape));
      } catch (Error& error) {
        if (!config.skip_bad_samples) throw error.at(utterance.where);
        report.skip("audio", utterance.where, error.what());
        continue;
      }
      hasher.add(utterance.audio + '\n' + utterance.text + '\n' + utterance.language + '\n');
      ++report.samples;
      report.tokens += static_cast<std::int64_t>(samples.back().ids.size());
      report.targets += count_targets(samples.back());
      kept.push_back(std::move(utterance));
    }
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
