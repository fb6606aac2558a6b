#include "train/whisper_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace convoy {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

constexpr const char* kLanguages[] = {
    "en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt",  "tr", "pl", "ca", "nl", "ar", "sv", "it", "id",
    "hi", "fi", "vi", "he", "uk", "el", "ms", "cs", "ro",  "da", "hu", "ta", "no", "th", "ur", "hr", "bg",
    "lt", "la", "mi", "ml", "cy", "sk", "te", "fa", "lv",  "bn", "sr", "az", "sl", "kn", "et", "mk", "br",
    "eu", "is", "hy", "ne", "mn", "bs", "kk", "sq", "sw",  "gl", "mr", "pa", "si", "km", "sn", "yo", "so",
    "af", "oc", "ka", "be", "tg", "sd", "gu", "am", "yi",  "lo", "uz", "fo", "ht", "ps", "tk", "nn", "mt",
    "sa", "lb", "my", "bo", "tl", "mg", "as", "tt", "haw", "ln", "ha", "ba", "jw", "su", "yue"};

void forbid(std::span<float> logits, TokenId id) {
  if (id >= 0 && static_cast<std::size_t>(id) < logits.size()) logits[static_cast<std::size_t>(id)] = kNever;
}

void forbid(std::span<float> logits, TokenId first, TokenId end) {
  const auto size = static_cast<TokenId>(logits.size());
  for (TokenId id = std::max(first, 0); id < std::min(end, size); ++id) logits[static_cast<std::size_t>(id)] = kNever;
}

// All but the likeliest of `allowed`.
void keep_best(std::span<float> logits, std::span<const TokenId> allowed) {
  TokenId best = -1;
  for (TokenId id : allowed) {
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) continue;
    if (best < 0 || logits[static_cast<std::size_t>(id)] > logits[static_cast<std::size_t>(best)]) best = id;
  }
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<TokenId>(i) != best) logits[i] = kNever;
  }
}

std::vector<TokenId> ids_of(const Json& json, const char* key) {
  std::vector<TokenId> ids;
  const auto place = json.find(key);
  if (place == json.end() || !place->is_array()) return ids;
  for (const Json& id : *place) {
    if (id.is_number_integer()) ids.push_back(id.get<TokenId>());
  }
  return ids;
}

}  // namespace

std::vector<TokenId> whisper_languages(const Tokenizer& tokenizer) {
  std::vector<TokenId> found;
  for (const char* code : kLanguages) {
    if (const auto id = tokenizer.token_to_id(fmt::format("<|{}|>", code))) found.push_back(*id);
  }
  return found;
}

std::optional<TokenId> no_speech_token(const Tokenizer& tokenizer) {
  const auto named = tokenizer.token_to_id("<|nospeech|>");
  return named ? named : tokenizer.token_to_id("<|nocaptions|>");
}

TimestampTokens::TimestampTokens(const Tokenizer& tokenizer) {
  const auto begin = tokenizer.token_to_id("<|0.00|>");
  if (!begin) return;
  first = *begin;
  while (tokenizer.token_to_id(fmt::format("<|{:.2f}|>", static_cast<double>(count) * kStep)) == first + count) ++count;
}

WhisperRules::WhisperRules(const Tokenizer& tokenizer, const Json& generation, TokenId end, bool timestamps)
    : times_(tokenizer), timestamps_(timestamps && times_.count > 0), end_(end) {
  never_ = ids_of(generation, "suppress_tokens");
  never_first_ = ids_of(generation, "begin_suppress_tokens");
  const auto most = generation.find("max_initial_timestamp_index");
  if (most != generation.end() && most->is_number_integer()) first_time_most_ = most->get<std::int64_t>();
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (id != end && !times_.contains(id) && tokenizer.is_special(id)) never_.push_back(id);
  }
  std::erase(never_, end);
}

void WhisperRules::apply(const Opening& opening, std::span<const TokenId> made, std::span<float> logits) const {
  if (made.size() < opening.size()) {
    keep_best(logits, opening[made.size()]);
    return;
  }
  const std::span<const TokenId> said = made.subspan(opening.size());
  for (TokenId id : never_) forbid(logits, id);
  if (said.empty()) {
    for (TokenId id : never_first_) forbid(logits, id);
  }
  if (timestamps_) {
    apply_times(said, logits);
  } else {
    forbid(logits, times_.first, times_.first + static_cast<TokenId>(times_.count));
  }
}

void WhisperRules::apply_times(std::span<const TokenId> said, std::span<float> logits) const {
  const TokenId first = times_.first, past = first + static_cast<TokenId>(times_.count);
  const auto forbid_text = [&](bool end_too) {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const auto id = static_cast<TokenId>(i);
      if (!times_.contains(id) && (end_too || id != end_)) logits[i] = kNever;
    }
  };
  if (said.empty()) {
    forbid_text(true);
    forbid(logits, first + static_cast<TokenId>(first_time_most_) + 1, past);
    return;
  }
  const bool after_time = times_.contains(said.back());
  const bool after_pair = after_time && (said.size() < 2 || times_.contains(said[said.size() - 2]));
  if (after_pair) {
    forbid(logits, first, past);
  } else if (after_time) {
    forbid_text(false);
  }
  const auto latest = std::find_if(said.rbegin(), said.rend(), [&](TokenId id) { return times_.contains(id); });
  if (latest != said.rend()) forbid(logits, first, after_time && !after_pair ? *latest : *latest + 1);
  // Where a time is likelier than any one word, it is a time.
  float most = kNever, best_text = kNever;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    float& best = times_.contains(static_cast<TokenId>(i)) ? most : best_text;
    best = std::max(best, logits[i]);
  }
  if (most == kNever) return;
  double sum = 0;
  for (TokenId id = first; id < past && static_cast<std::size_t>(id) < logits.size(); ++id)
    sum += std::exp(static_cast<double>(logits[static_cast<std::size_t>(id)]) - most);
  if (most + std::log(sum) > best_text) forbid_text(true);
}

TimedWindow split_by_times(std::span<const TokenId> said, const TimestampTokens& times, double seconds) {
  TimedWindow made;
  made.consumed = seconds;
  made.said = said.size();
  const auto is_time = [&](std::size_t i) { return times.contains(said[i]); };
  const auto add = [&](double start, double end, std::span<const TokenId> part) {
    TimedTokens segment{start, std::min(end, seconds), {}};
    for (TokenId id : part) {
      if (!times.contains(id)) segment.tokens.push_back(id);
    }
    if (!segment.tokens.empty()) made.segments.push_back(std::move(segment));
  };
  const std::size_t n = said.size();
  const bool ends_alone = n >= 2 && !is_time(n - 2) && is_time(n - 1);
  std::vector<std::size_t> cuts;
  for (std::size_t i = 1; i < n; ++i) {
    if (is_time(i - 1) && is_time(i)) cuts.push_back(i);
  }
  if (cuts.empty()) {
    const auto latest = std::find_if(said.rbegin(), said.rend(), [&](TokenId id) { return times.contains(id); });
    const bool timed = latest != said.rend() && *latest != times.first;
    const double start = n > 0 && is_time(0) && ends_alone ? times.seconds(said[0]) : 0;
    add(start, timed ? times.seconds(*latest) : seconds, said);
    return made;
  }
  if (ends_alone) cuts.push_back(n);
  std::size_t begin = 0;
  for (std::size_t cut : cuts) {
    const std::span<const TokenId> part = said.subspan(begin, cut - begin);
    add(is_time(begin) ? times.seconds(part.front()) : 0, times.seconds(part.back()), part);
    begin = cut;
  }
  // A sentence that the window cuts off is heard again, from its beginning.
  if (!ends_alone) made.consumed = std::min(times.seconds(said[begin - 1]), seconds);
  made.said = begin;
  return made;
}

}  // namespace convoy
