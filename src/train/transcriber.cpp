#include "train/transcriber.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "text/unicode.h"

namespace convoy {
namespace {

constexpr std::int64_t kNewTokens = 256;        // of a window
constexpr double kMostTemperatureBefore = 0.5;  // of what the next window is told, as openai-whisper has it

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

// Models of English alone, whose tokenizers have the tokens of languages though their prompts have none.
bool english_alone(const Json& generation) {
  const auto place = generation.find("is_multilingual");
  return place != generation.end() && *place == Json(false);
}

TranscriberOptions for_english(const TranscriberOptions& options, bool english) {
  if (!english) return options;
  const std::string& asked = options.language;
  if ((!asked.empty() && asked != "en" && asked != "none") || options.task != "transcribe") {
    throw usage_error("the model knows English alone, and writes down what is said in it")
        .mend("leave --language and --task out, or take a multilingual model");
  }
  TranscriberOptions changed = options;
  changed.language = "none";
  return changed;
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
      english_(model.audio()->audio_token < 0 && english_alone(generation)),
      options_(for_english(options, english_)),
      prompt_(tokenizer, model.audio().value(), config, where, prompt_options(options_)),
      features_(model.audio().value(), prompt_.whisper() ? 1 : options.windows, model.audio()->frames) {
  check_fallback(options.fallback);
  if (tokenizer.vocab_size() > model.vocab_size()) {
    throw usage_error(fmt::format("the tokenizer has {} tokens, the model's vocabulary {}", tokenizer.vocab_size(),
                                  model.vocab_size()))
        .at(where)
        .mend("use the tokenizer that belongs to the model");
  }
  if (prompt_.whisper()) {
    set_whisper(generation);
  } else if (options.timestamps) {
    throw usage_error("this model says no times").mend("leave --timestamps out: each window becomes one segment");
  } else if (options.condition_on_prev || !options.initial_prompt.empty()) {
    throw usage_error("this model's prompt has no place for what was said before")
        .mend("leave --condition_on_prev_tokens and --initial_prompt out: they are Whisper's");
  } else if (options.fallback.no_speech_threshold) {
    throw usage_error("this model has no token for silence").mend("leave --no_speech_threshold out: it is Whisper's");
  }
  generation_.max_new_tokens = options.max_new_tokens > 0 ? options.max_new_tokens : kNewTokens * features_.windows();
  generator_ = std::make_unique<Generator>(device, model, room(model));
  generation_.stop_tokens = {prompt_.end()};
  if (!prompt_.whisper()) {  // published models end with another turn's token too
    add_stops(generation, tokenizer, generation_.stop_tokens);
    add_stops(config, tokenizer, generation_.stop_tokens);
    if (config.contains("text_config")) add_stops(config["text_config"], tokenizer, generation_.stop_tokens);
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.is_special(id) && !is_stop(id)) unsaid_.push_back(id);
    }
  }
  generation_.sampling.vocab = tokenizer.vocab_size();
  generation_.sampling.seed = options.fallback.seed;
  generation_.length_penalty = options.length_penalty;
  generation_.score = options.scores;
  if (prompt_.whisper() && model.positions_are_learned())
    most_before_ = static_cast<std::size_t>(std::max<std::int64_t>(model.max_positions() / 2 - 1, 0));
}

void Transcriber::set_whisper(const Json& generation) {
  rules_.emplace(tokenizer_, generation, prompt_.end(), options_.timestamps);
  if (options_.timestamps && rules_->times().count == 0) {
    throw usage_error("the model's tokenizer has no tokens for times")
        .mend("leave --timestamps out: each window becomes one segment");
  }
  const std::vector<TokenId> languages = whisper_languages(tokenizer_);
  told_ = options_.language.empty() && !languages.empty();
  if (told_) {
    opening_.push_back(languages);
    if (const auto task = tokenizer_.token_to_id("<|" + options_.task + "|>")) opening_.push_back({*task});
    const auto plain = tokenizer_.token_to_id("<|notimestamps|>");
    if (plain && !options_.timestamps) opening_.push_back({*plain});
  }
  if (options_.scores) no_speech_ = no_speech_token(tokenizer_);
  if (!options_.condition_on_prev && options_.initial_prompt.empty()) return;
  before_ = tokenizer_.token_to_id("<|startofprev|>");
  if (!before_) {
    throw usage_error("the model's tokenizer has no token <|startofprev|>, which earlier text stands behind")
        .mend("leave --condition_on_prev_tokens and --initial_prompt out");
  }
  EncodeOptions encoding;
  encoding.add_special_tokens = encoding.parse_special = false;
  const std::string text = trimmed(options_.initial_prompt);
  if (!text.empty()) initial_prompt_ = tokenizer_.encode(" " + text, encoding);
}

GeneratorRoom Transcriber::room(const Model& model) const {
  GeneratorRoom room;
  room.dtype = options_.dtype;
  room.batch = options_.batch;
  room.beams = options_.beams;
  room.cache = options_.cache;
  room.audio_windows = features_.windows();
  // A language that a manifest names, or that the model tells, makes the prompt longer by two tokens.
  const auto prompt_tokens = static_cast<std::int64_t>(prompt_.prompt("", features_.places(chunk())).size());
  room.max_length = prompt_tokens + 2 + generation_.max_new_tokens;
  if (before_) room.max_length += model.max_positions() / 2;
  if (options_.max_length > 0) room.max_length = options_.max_length;
  if (room.max_length <= prompt_tokens) {
    throw usage_error(
        fmt::format("a prompt of {} tokens leaves no room for text within {}", prompt_tokens, room.max_length))
        .mend("raise seq_length");
  }
  if (model.positions_are_learned()) room.max_length = std::min(room.max_length, model.max_positions());
  return room;
}

// The windows of a recording that can be heard now: all that are left, or the next one where it depends on its text
// where the one after it begins, or what stands before it.
void Transcriber::take_windows(Open& open, std::vector<Window>& windows) const {
  const auto total = static_cast<std::int64_t>(open.recording.samples.size());
  while (open.at < total && static_cast<std::int64_t>(windows.size()) < options_.batch) {
    Window window;
    window.open = &open;
    window.begin = open.at;
    window.end = std::min(open.at + chunk(), total);
    open.at = window.end;
    if (!set_prompt(window)) continue;
    windows.push_back(std::move(window));
    if (options_.window_by_window()) return;
  }
}

// False for a rest of a recording that has no place in the text: of less than 0.07 s.
bool Transcriber::set_prompt(Window& window) const {
  const std::int64_t places = features_.places(window.end - window.begin);
  if (!prompt_.whisper() && places == 0) return false;
  const Open& open = *window.open;
  std::vector<TokenId> ids;
  if (told_ && open.recording.language.empty()) {
    ids = {prompt_.start()};
    window.opening = opening_;
  } else {
    ids = prompt_.prompt(open.recording.language, places);
    if (no_speech_) {  // which is asked after the first token: the others come as text that has no choice
      for (const TokenId id : std::span(ids).subspan(1)) window.opening.push_back({id});
      ids.resize(1);
    }
  }
  window.prompt.forced = static_cast<std::int64_t>(window.opening.size());
  if (before_ && !open.before.empty() && (window.begin == 0 || options_.window_by_window())) {
    const std::size_t count = std::min(open.before.size(), most_before_);
    window.prompt.ids = {*before_};
    window.prompt.ids.insert(window.prompt.ids.end(), open.before.end() - static_cast<std::ptrdiff_t>(count),
                             open.before.end());
  }
  window.prompt.ids.insert(window.prompt.ids.end(), ids.begin(), ids.end());
  return true;
}

bool Transcriber::is_stop(TokenId id) const {
  const std::vector<TokenId>& stops = generation_.stop_tokens;
  return std::find(stops.begin(), stops.end(), id) != stops.end();
}

std::string Transcriber::text_of(std::span<const TokenId> said) const {
  std::vector<TokenId> words;
  for (const TokenId id : said) {
    if (!rules_ || !rules_->times().contains(id)) words.push_back(id);
  }
  return trimmed(tokenizer_.decode(words, true));
}

// Without the opening and the token that ends it.
std::span<const TokenId> Transcriber::transcript_of(const Window& window, std::span<const TokenId> said) const {
  said = said.subspan(std::min(window.opening.size(), said.size()));
  return !said.empty() && is_stop(said.back()) ? said.first(said.size() - 1) : said;
}

// Of windows that are heard together, all at one temperature.
std::vector<Transcriber::Attempt> Transcriber::decode(std::span<Window* const> windows, std::size_t number) {
  const double temperature = options_.fallback.temperatures[number];
  const std::size_t drawn = temperature > 0 ? static_cast<std::size_t>(options_.fallback.best_of) : 1;
  std::vector<GenerationPrompt> prompts;
  for (const Window* window : windows) {
    for (std::size_t c = 0; c < drawn; ++c) {
      prompts.push_back(window->prompt);
      const std::uint64_t name[] = {window->open->key, static_cast<std::uint64_t>(window->begin), number, c};
      prompts.back().stream = hash64(std::as_bytes(std::span(name)));
    }
  }
  generation_.sampling.temperature = temperature;
  generation_.search = temperature <= 0;
  generation_.rule = [&](std::size_t text, std::span<const std::int32_t> made, std::span<float> logits) {
    Window& window = *windows[text / drawn];
    if (no_speech_ && made.empty()) window.no_speech_prob = std::exp(log_probability(logits, *no_speech_));
    for (TokenId id : unsaid_) logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
    if (rules_) rules_->apply(window.opening, made, logits);
  };
  std::vector<GeneratedText> made = generator_->generate_from(prompts, generation_);
  std::vector<Attempt> attempts(windows.size());
  parallel_for(static_cast<std::int64_t>(windows.size()), [&](std::int64_t w) {
    const Window& window = *windows[static_cast<std::size_t>(w)];
    Attempt& attempt = attempts[static_cast<std::size_t>(w)];
    const auto mean = [&](const GeneratedText& text) {
      const std::size_t length = text.tokens.size() - std::min(window.opening.size(), text.tokens.size());
      return text.log_probability / static_cast<double>(std::max<std::size_t>(length, 1));
    };
    const std::span<GeneratedText> texts = std::span(made).subspan(static_cast<std::size_t>(w) * drawn, drawn);
    GeneratedText& best = *std::max_element(
        texts.begin(), texts.end(), [&](const auto& one, const auto& other) { return mean(one) < mean(other); });
    attempt.score = {mean(best), 0, window.no_speech_prob, temperature};
    attempt.said = std::move(best.tokens);
    if (!options_.scores) return;
    attempt.score.compression_ratio = compression_ratio(text_of(transcript_of(window, attempt.said)));
    attempt.verdict = judge(attempt.score, options_.fallback);
  });
  return attempts;
}

// At rising temperatures, as long as there are and what was said is not good.
void Transcriber::decode(std::vector<Window>& windows) {
  std::vector<Window*> rest;
  for (Window& window : windows) rest.push_back(&window);
  counts_.windows += static_cast<std::int64_t>(rest.size());
  for (std::size_t number = 0; number < options_.fallback.temperatures.size() && !rest.empty(); ++number) {
    if (number == 1) counts_.again += static_cast<std::int64_t>(rest.size());
    std::vector<Attempt> attempts = decode(rest, number);
    std::vector<Window*> failed;
    for (std::size_t w = 0; w < rest.size(); ++w) {
      Attempt& taken = rest[w]->taken;
      const bool fails = attempts[w].verdict == Verdict::kAgain;
      if (fails) failed.push_back(rest[w]);
      if (number == 0 || !fails || better(attempts[w].score, taken.score, options_.fallback))
        taken = std::move(attempts[w]);
    }
    rest = std::move(failed);
  }
  for (const Window& window : windows) counts_.silent += window.taken.verdict == Verdict::kSilence ? 1 : 0;
}

void Transcriber::finish(Window& window) const {
  const Attempt& taken = window.taken;
  Open& open = *window.open;
  open.made.tokens += static_cast<std::int64_t>(taken.said.size());
  const bool silent = taken.verdict == Verdict::kSilence;
  const std::string& given = open.recording.language.empty() ? options_.language : open.recording.language;
  if (told_ && open.recording.language.empty()) {
    if (!silent && !taken.said.empty() && open.made.language.empty()) {
      const std::string token = tokenizer_.id_to_token(taken.said.front()).value_or("");
      if (token.size() > 4) open.made.language = token.substr(2, token.size() - 4);
    }
  } else if (given != "none") {
    open.made.language = given;
  }
  if (silent) return;
  const std::span<const TokenId> said = transcript_of(window, taken.said);
  const double begin = static_cast<double>(window.begin) / kSpeechRate;
  const double seconds = static_cast<double>(window.end - window.begin) / kSpeechRate;
  TimedWindow timed;
  if (options_.timestamps) {
    timed = split_by_times(said, rules_->times(), seconds);
    const auto consumed = static_cast<std::int64_t>(timed.consumed * kSpeechRate);
    // Progress of a tenth of a second at least.
    if (consumed >= kSpeechRate / 10) open.at = std::min(window.begin + consumed, window.end);
  } else {
    timed.segments.push_back({0, seconds, {said.begin(), said.end()}});
    timed.said = said.size();
  }
  for (const TimedTokens& segment : timed.segments) {
    const std::string text = text_of(segment.tokens);
    if (text.empty()) continue;
    open.made.segments.push_back({begin + segment.start, begin + segment.end, text});
    if (options_.scores) open.made.scores.push_back(taken.score);
    open.made.text = join_texts(open.made.text, text);
  }
  // What was drawn rather than meant would lead the next window astray.
  if (!options_.condition_on_prev || taken.score.temperature > kMostTemperatureBefore) {
    open.before.clear();
  } else {
    open.before.insert(open.before.end(), said.begin(), said.begin() + static_cast<std::ptrdiff_t>(timed.said));
  }
}

void Transcriber::write_features(std::vector<Window>& windows) const {
  parallel_for(static_cast<std::int64_t>(windows.size()), [&](std::int64_t i) {
    Window& window = windows[static_cast<std::size_t>(i)];
    const std::int64_t samples = window.end - window.begin;
    window.features.assign(static_cast<std::size_t>(features_.windows_of(samples) * features_.window_floats()), 0.0f);
    features_.write(std::span(window.open->recording.samples)
                        .subspan(static_cast<std::size_t>(window.begin), static_cast<std::size_t>(samples)),
                    window.features);
    window.prompt.features = window.features;
    window.prompt.sound = features_.log_mel_config().valid_frames(samples);
  });
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
      open.push_back({taken++, std::move(*recording), 0, {}, 0, initial_prompt_});
      Open& fresh = open.back();
      if (english_) {
        fresh.recording.language.clear();
        fresh.made.language = "en";
      }
      fresh.key = hash64(std::as_bytes(std::span(fresh.recording.samples)));
      fresh.made.seconds = static_cast<double>(fresh.recording.samples.size()) / kSpeechRate;
      take_windows(fresh, windows);
    }
    write_features(windows);
    decode(windows);
    for (Window& window : windows) finish(window);
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
