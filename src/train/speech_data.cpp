#include "train/speech_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <thread>

#include "audio/manifest.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "config/resolve.h"

namespace convoy {
namespace {

constexpr std::int64_t kTouched = 2;  // frames behind the last of sound that the encoder's convolutions see with it
constexpr std::int64_t kSlack = 3;    // frames by which a header and the decoder may differ

std::int64_t samples_of(const Utterance& utterance, double speed = 1) {
  return static_cast<std::int64_t>(std::llround(utterance.duration / speed * kSpeechRate));
}

// Another number of places for audio in a row with one document: what stands behind them moves.
void set_places(Batch& batch, std::int64_t row, std::int64_t sample, TokenId audio, std::int64_t places) {
  const auto first = static_cast<std::size_t>(row * batch.seq), end = first + static_cast<std::size_t>(batch.seq);
  std::size_t length = 0;  // of the document
  while (first + length < end && batch.seq_start[first + length] == static_cast<std::int32_t>(first)) ++length;
  const std::vector<TokenId> ids(batch.input_ids.begin() + static_cast<std::ptrdiff_t>(first),
                                 batch.input_ids.begin() + static_cast<std::ptrdiff_t>(first + length));
  const std::vector<std::int32_t> targets(batch.targets.begin() + static_cast<std::ptrdiff_t>(first),
                                          batch.targets.begin() + static_cast<std::ptrdiff_t>(first + length));
  const auto begin = static_cast<std::size_t>(std::find(ids.begin(), ids.end(), audio) - ids.begin());
  std::size_t before = 0;
  while (begin + before < length && ids[begin + before] == audio) ++before;
  if (before == static_cast<std::size_t>(places)) return;
  const std::size_t now = length - before + static_cast<std::size_t>(places);
  check(begin < length && first + now <= end, "a row without room for the places of its audio");
  for (std::size_t i = 0; i < std::max(now, length); ++i) {
    const std::size_t to = first + i;
    const bool is_place = i >= begin && i < begin + static_cast<std::size_t>(places), padding = i >= now;
    const std::size_t from = i < begin ? i : i + before - static_cast<std::size_t>(places);
    batch.input_ids[to] = padding ? 0 : is_place ? audio : ids[from];
    batch.targets[to] = padding || is_place ? -1 : targets[from];
    batch.positions[to] = padding ? 0 : static_cast<std::int32_t>(i);
    batch.seq_start[to] = static_cast<std::int32_t>(padding ? to : first);
    batch.token_keys[to] = padding ? 0 : dropout_key(batch.epoch, sample, static_cast<std::int64_t>(i));
  }
}

void require_fit(bool fits, const std::string& what, const std::string& remedy) {
  if (!fits) throw data_error(what).mend(remedy);
}

// Places for audio need the exact number of samples, which a manifest's duration may round.
EncodedSample encode_utterance(const Utterance& utterance, const SpeechPrompt& prompt, const SpeechFeatures& features,
                               const TrainShape& shape, double slowest, SpeechSize& size) {
  const std::int64_t longest = samples_of(utterance, slowest);
  const std::int64_t windows = features.windows_of(longest);
  require_fit(windows <= shape.audio_windows,
              fmt::format("the recording lasts {:.2f} s{}, longer than {} window(s) of {} s",
                          static_cast<double>(longest) / kSpeechRate, slowest < 1 ? " at its slowest" : "",
                          shape.audio_windows, features.window_seconds()),
              features.input().audio_token < 0 ? "cut it, or leave it out with skip_bad_samples"
                                               : "raise audio_windows, or leave it out with skip_bad_samples");
  const std::int64_t places = features.places(samples_of(utterance));
  require_fit(features.input().audio_token < 0 || places > 0, "the recording is too short to give a row of audio",
              "leave it out with skip_bad_samples");
  EncodedSample sample = prompt.encode(utterance.text, utterance.language, places);
  const std::int64_t tokens = static_cast<std::int64_t>(sample.ids.size()) + features.places(longest) - places;
  require_fit(tokens <= shape.seq,
              fmt::format("prompt and transcript are {} tokens, longer than seq_length {}", tokens, shape.seq),
              "raise seq_length, or leave it out with skip_bad_samples");
  // The last frame of sound goes into one more of each convolution; a manifest's duration may be a little short.
  const std::int64_t slack = kTouched + (features.input().audio_token < 0 ? kSlack : 0);
  const LogMelConfig& mel = features.log_mel_config();
  size = {mel.valid_frames(longest) + slack, mel.valid_frames(samples_of(utterance)), tokens};
  if (windows <= 1) size.frames = std::min(size.frames, features.frames());
  return sample;
}

SpeechSourceOptions source_options(const RunConfig& config, bool training) {
  SpeechSourceOptions made;
  made.threads = static_cast<int>(config.audio_threads);
  made.skip_bad_audio = config.skip_bad_samples;
  if (config.audio_cache) made.features.cache = *config.audio_cache;
  if (!training) return made;
  made.features.seed = static_cast<std::uint64_t>(config.data_seed.value_or(config.seed));
  made.features.speeds = numbers_of(config, "audio_speeds", config.audio_speeds, "give numbers, such as 0.9,1,1.1");
  SpecAugmentConfig& masks = made.features.spec_augment;
  masks.mask_time_prob = config.mask_time_prob;
  masks.mask_time_length = static_cast<int>(config.mask_time_length);
  masks.mask_feature_prob = config.mask_feature_prob;
  masks.mask_feature_length = static_cast<int>(config.mask_feature_length);
  masks.time_masks = static_cast<int>(config.time_masks);
  masks.time_width = static_cast<int>(config.time_mask_width);
  masks.feature_masks = static_cast<int>(config.feature_masks);
  masks.feature_width = static_cast<int>(config.feature_mask_width);
  return made;
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

SpeechSource::SpeechSource(std::shared_ptr<const SpeechFeatures> features, std::vector<Utterance> utterances,
                           SpeechSourceOptions options, std::vector<SpeechSize> sizes)
    : features_(std::move(features)),
      utterances_(std::make_shared<const std::vector<Utterance>>(std::move(utterances))),
      options_(std::move(options)),
      sizes_(std::move(sizes)),
      maker_(utterances_, features_->log_mel_config(), options_.features) {}

std::int64_t SpeechSource::fill_features(std::span<float> row, const RowShape& shape, std::int64_t sample,
                                         std::int64_t epoch, double speed) const {
  const Utterance& utterance = (*utterances_)[static_cast<std::size_t>(sample)];
  if (features_->windows_of(samples_of(utterance, speed)) > 1) {  // each window is a clip of its own
    check(shape.frames == features_->frames(), "several windows that are not whole");
    DecodeOptions decoding;
    decoding.sampling_rate = kSpeechRate;
    decoding.speed = speed;
    const std::vector<float> samples = reader_.decode(utterance, decoding).samples;
    features_->write(samples, row, [&](Features& window, std::int64_t w) {
      const std::uint64_t seed = options_.features.seed + (static_cast<std::uint64_t>(w) << 32);
      spec_augment(window, options_.features.spec_augment, {seed, epoch, sample});
    });
    return features_->log_mel_config().valid_frames(static_cast<std::int64_t>(samples.size()));
  }
  const Features made = maker_.make(sample, epoch);
  if (made.valid_frames > shape.frames + (shape.frames == features_->frames() ? kSlack : 0)) {
    throw data_error(fmt::format("the recording has {} frames, more than its duration of {:.2f} s", made.valid_frames,
                                 utterance.duration))
        .at(utterance.where)
        .mend("correct the duration in the manifest, or leave it out to have it measured");
  }
  features_->write(made, row, shape.frames);
  return std::min(made.valid_frames, shape.frames);
}

void SpeechSource::fill_row(Batch& batch, const RowShape& shape, std::int64_t row, std::int64_t sample) const {
  const Utterance& utterance = (*utterances_)[static_cast<std::size_t>(sample)];
  const AudioInput& input = features_->input();
  const auto floats = static_cast<std::size_t>(shape.windows * shape.frames * input.mel_bins);
  const std::span<float> to = std::span(batch.audio_features).subspan(static_cast<std::size_t>(row) * floats, floats);
  const FeatureOptions& how = options_.features;
  const double speed = choose_speed(how.speeds, {how.seed, batch.epoch, sample});
  try {
    std::int64_t sound = fill_features(to, shape, sample, batch.epoch, speed);
    for (std::int64_t w = 0; w < shape.windows && input.masks_padding; ++w, sound -= shape.frames) {
      const std::int64_t frames = std::clamp<std::int64_t>(sound, 0, shape.frames);
      batch.audio_lengths[static_cast<std::size_t>(row * shape.windows + w)] =
          static_cast<std::int32_t>((frames + 1) / 2);
    }
  } catch (const Error& failure) {
    if (!options_.skip_bad_audio || (failure.status() != Status::kData && failure.status() != Status::kStorage)) throw;
    log_warning("left out: {}", failure.what());
    std::fill(to.begin(), to.end(), 0.0f);
    const auto first = static_cast<std::ptrdiff_t>(row) * batch.seq;
    std::fill_n(batch.targets.begin() + first, batch.seq, -1);
  }
  if (input.audio_token < 0) return;
  const std::int64_t places = features_->places(samples_of(utterance, speed));
  if (!how.speeds.empty()) set_places(batch, row, sample, static_cast<TokenId>(input.audio_token), places);
  const std::int64_t rows = shape.windows * shape.frames / input.frames_per_token;
  std::int64_t next = row * rows;
  for (std::int64_t t = row * batch.seq; t < (row + 1) * batch.seq; ++t) {
    if (batch.input_ids[static_cast<std::size_t>(t)] != input.audio_token) continue;
    check(next < (row + 1) * rows, "more places for audio than rows of it");
    batch.audio_rows[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(next++);
  }
}

void SpeechSource::complete(Batch& batch, const RowShape& shape) const {
  const std::int64_t floats = shape.windows * shape.frames * features_->input().mel_bins;
  batch.audio_features.assign(static_cast<std::size_t>(batch.rows * floats), 0.0f);
  if (features_->input().masks_padding)
    batch.audio_lengths.assign(static_cast<std::size_t>(batch.rows * shape.windows), 0);
  if (features_->input().audio_token >= 0) batch.audio_rows.assign(static_cast<std::size_t>(batch.tokens()), -1);
  const std::size_t rows = batch.samples.size();
  std::vector<std::exception_ptr> failures(rows);
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t r = next++; r < rows; r = next++) {
      try {
        fill_row(batch, shape, static_cast<std::int64_t>(r), batch.samples[r]);
      } catch (...) {
        failures[r] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < std::min<std::size_t>(static_cast<std::size_t>(options_.threads), rows); ++i)
    threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  batch.target_count = std::count_if(batch.targets.begin(), batch.targets.end(), [](auto t) { return t >= 0; });
}

std::vector<double> numbers_of(const RunConfig& config, const std::string& key, const std::vector<std::string>& items,
                               const std::string& remedy) {
  std::vector<double> numbers;
  for (const std::string& item : items) {
    std::istringstream parts(item + ",");
    for (std::string part; std::getline(parts, part, ',');) {
      char* end = nullptr;
      numbers.push_back(std::strtod(part.c_str(), &end));
      if (part.empty() || *end != '\0' || !std::isfinite(numbers.back())) {
        throw usage_error(fmt::format("{}: '{}' is no number", key, part)).at(config.source_of(key)).mend(remedy);
      }
    }
  }
  return numbers;
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
  SpeechSourceOptions options = source_options(config, key == "train_files");
  const double slowest = options.features.speeds.empty()
                             ? 1.0
                             : *std::min_element(options.features.speeds.begin(), options.features.speeds.end());
  std::vector<Utterance> kept;
  std::vector<EncodedSample> samples;
  std::vector<SpeechSize> sizes;
  double seconds = 0;
  for (Utterance& utterance : read_all(config, key, input.audio_token >= 0, report)) {
    SpeechSize size;
    try {
      samples.push_back(encode_utterance(utterance, prompt, *features, shape, slowest, size));
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
    seconds += utterance.duration;
    sizes.push_back(size);
    kept.push_back(std::move(utterance));
  }
  const double heard = features->window_seconds() * static_cast<double>(shape.audio_windows * kept.size());
  if (!kept.empty()) {
    log_info("{}: {} recordings of {:.1f} minutes; {:.1f} % of what the encoder hears is padding", key, kept.size(),
             seconds / 60, 100 * (1 - seconds / heard));
  }
  std::string bytes;
  TokenWriter writer(
      [&](std::span<const std::byte> part) { bytes.append(reinterpret_cast<const char*>(part.data()), part.size()); },
      source.model->vocab_size(), hasher.value());
  for (const EncodedSample& sample : samples) writer.add(sample);
  writer.finish(report);
  return {
      TokenData::from_memory(std::move(bytes), "speech manifest"),
      std::make_shared<const SpeechSource>(std::move(features), std::move(kept), std::move(options), std::move(sizes))};
}

}  // namespace convoy
