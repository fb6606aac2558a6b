#include "train/speech_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace convoy {
namespace {

constexpr const char* kRequest = "Please transcribe this audio into text";

LogMelConfig log_mel_config(const AudioInput& input, std::int64_t frames) {
  LogMelConfig config;
  config.feature_size = static_cast<int>(input.mel_bins);
  const std::int64_t samples = frames * config.hop_length;
  if (samples % kSpeechRate != 0) {
    throw usage_error(fmt::format("windows of {} log-mel frames are {} s long; they should last whole seconds", frames,
                                  static_cast<double>(samples) / kSpeechRate))
        .mend("choose max_source_positions (or the encoder's max_position_embeddings) as a multiple of 50 (of 200)");
  }
  config.chunk_length = static_cast<int>(samples / kSpeechRate);
  return config;
}

// "zh" of "zh-CN": Whisper's tokens name languages without regions.
std::string without_region(const std::string& language) {
  std::string code = language.substr(0, language.find_first_of("-_"));
  for (char& c : code) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return code;
}

}  // namespace

SpeechPrompt::SpeechPrompt(const Tokenizer& tokenizer, const AudioInput& input, const Json& config,
                           const std::string& where, SpeechPromptOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)), whisper_(input.audio_token < 0) {
  if (whisper_) {
    if (const auto start = tokenizer.token_to_id("<|startoftranscript|>")) {
      start_ = *start;
    } else if (config.contains("decoder_start_token_id")) {
      start_ = config["decoder_start_token_id"].get<TokenId>();
    } else {
      throw usage_error("neither the tokenizer nor config.json names the token that starts a transcript")
          .at(where)
          .mend("add <|startoftranscript|> to the tokenizer, or decoder_start_token_id to config.json");
    }
    end_ = required("<|endoftext|>");
    return;
  }
  audio_ = static_cast<TokenId>(input.audio_token);
  end_ = required("<|endoftext|>");
  EncodeOptions encoding;
  encoding.add_special_tokens = false;
  before_ = tokenizer.encode("<|user|>\n", encoding);
  before_.push_back(required("<|begin_of_audio|>"));
  after_.push_back(required("<|end_of_audio|>"));
  required("<|user|>");
  required("<|assistant|>");
  for (TokenId id : tokenizer.encode(fmt::format("<|user|>\n{}<|assistant|>\n", kRequest), encoding))
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
  const std::string& spoken = language.empty() ? options_.language : language;
  if (!spoken.empty()) {
    ids.push_back(required("<|" + without_region(spoken) + "|>"));
    ids.push_back(required("<|" + options_.task + "|>"));
  }
  if (options_.timestamps) return ids;
  if (const auto plain = tokenizer_.token_to_id("<|notimestamps|>")) ids.push_back(*plain);
  return ids;
}

EncodedSample SpeechPrompt::encode(const std::string& text, const std::string& language, std::int64_t places) const {
  EncodedSample made;
  made.append(prompt(language, places), whisper_);
  EncodeOptions encoding;
  encoding.add_special_tokens = false;
  encoding.parse_special = false;
  made.append(tokenizer_.encode(text, encoding), true);
  made.append(end_, true);
  return made;
}

SpeechFeatures::SpeechFeatures(const AudioInput& input, std::int64_t windows, std::int64_t frames)
    : input_(input), windows_(windows), frames_(frames), log_mel_(convoy::log_mel_config(input, frames)) {}

std::int64_t SpeechFeatures::places(std::int64_t samples) const {
  if (input_.audio_token < 0) return 0;
  return (log_mel_.config().valid_frames(samples) + 1) / 2 / (input_.frames_per_token / 2);
}

void SpeechFeatures::write(std::span<const float> samples, std::span<float> row,
                           const std::function<void(Features&, std::int64_t)>& change) const {
  std::vector<Features> windows = log_mel_.windows(samples);
  const auto count = static_cast<std::int64_t>(windows.size());
  check(count <= windows_ && count * window_floats() <= static_cast<std::int64_t>(row.size()),
        "a recording of more windows than planned");
  for (std::int64_t w = 0; w < count; ++w) {
    Features& window = windows[static_cast<std::size_t>(w)];
    if (change) change(window, w);
    write(window, row.subspan(static_cast<std::size_t>(w * window_floats())));
  }
}

void SpeechFeatures::write(const Features& window, std::span<float> row, std::int64_t frames) const {
  if (frames == 0) frames = frames_;
  check(window.bins == input_.mel_bins && static_cast<std::int64_t>(row.size()) >= frames * window.bins,
        "features of another shape");
  const std::int64_t given = std::min(window.frames, frames);
  for (std::int64_t m = 0; m < window.bins; ++m) {
    const float* from = window.values.data() + m * window.frames;
    for (std::int64_t t = 0; t < frames; ++t)
      row[static_cast<std::size_t>(t * window.bins + m)] = t < given ? from[t] : window.silence;
  }
}

}  // namespace convoy
