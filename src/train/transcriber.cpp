#include "train/transcriber.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/parallel.h"
#include "text/unicode.h"

namespace convoy {
namespace {

constexpr std::int64_t kNewTokens = 256;  // of a window

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \n\t\r");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \n\t\r") - first + 1);
}

// Whether a character is set without spaces: everything from U+2E80 on, where the scripts of East Asia and their
// punctuation lie, but for Hangul.
bool is_wide(char32_t c) {
  return c >= 0x2E80 && !(c >= 0xAC00 && c <= 0xD7AF) && c < 0xE0000;
}

// The ids that end a text by a model's configuration, those that the tokenizer has as special tokens.
void add_stops(const Json& config, const Tokenizer& tokenizer, std::vector<TokenId>& stops) {
  const auto place = config.find("eos_token_id");
  if (place == config.end()) return;
  for (const Json& id : place->is_array() ? *place : Json::array({*place})) {
    if (!id.is_number_integer()) continue;
    const auto token = id.get<TokenId>();
    if (token >= 0 && token < tokenizer.vocab_size() && tokenizer.is_special(token)) stops.push_back(token);
  }
}

SpeechPromptOptions prompt_options(const TranscriberOptions& options) {
  return {options.language == "none" ? "" : options.language, options.task, options.timestamps};
}

}  // namespace

std::string join_texts(const std::string& before, const std::string& after) {
  if (before.empty() || after.empty()) return before + after;
  std::size_t last = before.size() - 1;
  while (last > 0 && (static_cast<unsigned char>(before[last]) & 0xC0) == 0x80) --last;
  const bool wide = is_wide(decode_utf8(before, last).code) || is_wide(decode_utf8(after, 0).code);
  return wide ? before + after : before + " " + after;
}

Transcriber::Transcriber(Device& device, const Model& model, const Tokenizer& tokenizer, const Json& config,
                         const Json& generation, const std::string& where, const TranscriberOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      prompt_(tokenizer, model.audio().value(), config, where, prompt_options(options)),
      features_(model.audio().value(), prompt_.whisper() ? 1 : options.windows, model.audio()->frames) {
  if (tokenizer.vocab_size() > model.vocab_size()) {
    throw usage_error(fmt::format("the tokenizer has {} tokens, the model's vocabulary {}", tokenizer.vocab_size(),
                                  model.vocab_size()))
        .at(where)
        .mend("use the tokenizer that belongs to the model");
  }
  if (prompt_.whisper()) {
    rules_.emplace(tokenizer, generation, prompt_.end(), options.timestamps);
    if (options.timestamps && rules_->times().count == 0) {
      throw usage_error("the model's tokenizer has no tokens for times")
          .mend("leave --timestamps out: each window becomes one segment");
    }
    const std::vector<TokenId> languages = whisper_languages(tokenizer);
    told_ = options.language.empty() && !languages.empty();
    if (told_) {
      opening_.push_back(languages);
      if (const auto task = tokenizer.token_to_id("<|" + options.task + "|>")) opening_.push_back({*task});
      const auto plain = tokenizer.token_to_id("<|notimestamps|>");
      if (plain && !options.timestamps) opening_.push_back({*plain});
    }
  } else if (options.timestamps) {
    throw usage_error("this model says no times").mend("leave --timestamps out: each window becomes one segment");
  }
  GeneratorRoom room;
  room.dtype = options.dtype;
  room.batch = options.batch;
  room.beams = options.beams;
  room.cache = options.cache;
  room.audio_windows = features_.windows();
  const auto prompt_tokens = static_cast<std::int64_t>(prompt_.prompt("", features_.places(chunk())).size());
  std::int64_t made = options.max_new_tokens > 0 ? options.max_new_tokens : kNewTokens * features_.windows();
  made += static_cast<std::int64_t>(opening_.size());
  // A language that a manifest names makes the prompt longer by two tokens.
  room.max_length = prompt_tokens + 2 + made;
  if (options.max_length > 0) room.max_length = options.max_length;
  if (room.max_length <= prompt_tokens) {
    throw usage_error(
        fmt::format("a prompt of {} tokens leaves no room for text within {}", prompt_tokens, room.max_length))
        .mend("raise seq_length");
  }
  if (model.positions_are_learned()) room.max_length = std::min(room.max_length, model.max_positions());
  generator_ = std::make_unique<Generator>(device, model, room);
  generation_.max_new_tokens = made;
  generation_.stop_tokens = {prompt_.end()};
  if (!prompt_.whisper()) {  // published models end with another turn's token too
    add_stops(generation, tokenizer, generation_.stop_tokens);
    add_stops(config, tokenizer, generation_.stop_tokens);
    if (config.contains("text_config")) add_stops(config["text_config"], tokenizer, generation_.stop_tokens);
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.is_special(id) && !is_stop(id)) unsaid_.push_back(id);
    }
  }
  generation_.sampling.temperature = 0;
  generation_.sampling.vocab = tokenizer.vocab_size();
  generation_.length_penalty = options.length_penalty;
}

// The windows of a recording that can be heard now: all that are left, or the next one where it depends on its text
// where the one after it begins.
void Transcriber::take_windows(Open& open, std::vector<Window>& windows) const {
  const auto total = static_cast<std::int64_t>(open.recording.samples.size());
  while (open.at < total && static_cast<std::int64_t>(windows.size()) < options_.batch) {
    Window window;
    window.open = &open;
    window.begin = open.at;
    window.end = std::min(open.at + chunk(), total);
    open.at = window.end;
    const std::int64_t places = features_.places(window.end - window.begin);
    if (!prompt_.whisper() && places == 0) continue;  // a rest of less than 0.07 s
    window.prompt.ids = told_ && open.recording.language.empty() ? std::vector<TokenId>{prompt_.start()}
                                                                 : prompt_.prompt(open.recording.language, places);
    windows.push_back(std::move(window));
    if (options_.timestamps) return;
  }
}

bool Transcriber::is_stop(TokenId id) const {
  const std::vector<TokenId>& stops = generation_.stop_tokens;
  return std::find(stops.begin(), stops.end(), id) != stops.end();
}

void Transcriber::finish(Window& window, std::span<const TokenId> made) const {
  Open& open = *window.open;
  open.made.tokens += static_cast<std::int64_t>(made.size());
  if (!made.empty() && is_stop(made.back())) made = made.first(made.size() - 1);
  const std::string& given = open.recording.language.empty() ? options_.language : open.recording.language;
  if (told_ && open.recording.language.empty()) {
    if (!made.empty() && open.made.language.empty()) {
      const std::string token = tokenizer_.id_to_token(made.front()).value_or("");
      if (token.size() > 4) open.made.language = token.substr(2, token.size() - 4);
    }
    made = made.subspan(std::min(opening_.size(), made.size()));
  } else if (given != "none") {
    open.made.language = given;
  }
  const double begin = static_cast<double>(window.begin) / kSpeechRate;
  const double seconds = static_cast<double>(window.end - window.begin) / kSpeechRate;
  TimedWindow timed;
  if (options_.timestamps) {
    timed = split_by_times(made, rules_->times(), seconds);
    const auto consumed = static_cast<std::int64_t>(timed.consumed * kSpeechRate);
    // Progress of a tenth of a second at least.
    if (consumed >= kSpeechRate / 10) open.at = std::min(window.begin + consumed, window.end);
  } else {
    timed.segments.push_back({0, seconds, {made.begin(), made.end()}});
  }
  for (const TimedTokens& segment : timed.segments) {
    const std::string text = trimmed(tokenizer_.decode(segment.tokens, true));
    if (text.empty()) continue;
    open.made.segments.push_back({begin + segment.start, begin + segment.end, text});
    open.made.text = join_texts(open.made.text, text);
  }
}

void Transcriber::transcribe(const std::function<std::optional<Clip>()>& next,
                             const std::function<void(std::size_t index, Transcript transcript)>& done) {
  std::list<Open> open;  // windows point into it
  std::size_t taken = 0;
  bool more = true;
  while (true) {
    std::vector<Window> windows;
    for (Open& each : open) take_windows(each, windows);
    while (more && static_cast<std::int64_t>(windows.size()) < options_.batch) {
      std::optional<Clip> recording = next();
      more = recording.has_value();
      if (!more) break;
      open.push_back({taken++, std::move(*recording), 0, {}});
      open.back().made.seconds = static_cast<double>(open.back().recording.samples.size()) / kSpeechRate;
      take_windows(open.back(), windows);
    }
    parallel_for(static_cast<std::int64_t>(windows.size()), [&](std::int64_t i) {
      Window& window = windows[static_cast<std::size_t>(i)];
      const std::int64_t samples = window.end - window.begin;
      window.features.assign(static_cast<std::size_t>(features_.windows_of(samples) * features_.window_floats()), 0.0f);
      features_.write(std::span(window.open->recording.samples)
                          .subspan(static_cast<std::size_t>(window.begin), static_cast<std::size_t>(samples)),
                      window.features);
    });
    std::vector<GenerationPrompt> prompts;
    for (Window& window : windows) {
      window.prompt.features = window.features;
      window.prompt.sound = features_.log_mel_config().valid_frames(window.end - window.begin);
      prompts.push_back(window.prompt);
    }
    generation_.rule = [&](std::size_t text, std::span<const std::int32_t> made, std::span<float> logits) {
      for (TokenId id : unsaid_) logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
      if (rules_) {
        const bool given = !told_ || !windows[text].open->recording.language.empty();
        rules_->apply(given ? WhisperRules::Opening{} : opening_, made, logits);
      }
    };
    const auto made = generator_->generate_from(prompts, generation_);
    for (std::size_t i = 0; i < windows.size(); ++i) finish(windows[i], made[i]);
    for (auto each = open.begin(); each != open.end();) {
      if (each->at < static_cast<std::int64_t>(each->recording.samples.size())) {
        ++each;
        continue;
      }
      done(each->index, std::move(each->made));
      each = open.erase(each);
    }
    if (!more && open.empty()) return;
  }
}

}  // namespace convoy
