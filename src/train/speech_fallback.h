// Whether a window's transcript is to be trusted, and what is done where it is not: as openai-whisper's `transcribe`, a
// window that repeats itself or that the model is unsure of is decoded again at a higher temperature, and one without
// speech is left out (Radford et al., 2022, section 4.5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace convoy {

// Without thresholds the first temperature's text is taken as it is.
struct FallbackOptions {
  std::vector<double> temperatures = {0};  // tried one after the other; 0: the likeliest token, or a search with beams
  std::int64_t best_of = 1;                // texts drawn at each temperature above 0; the likeliest counts
  std::optional<double> compression_ratio_threshold, logprob_threshold, no_speech_threshold;
  std::uint64_t seed = 42;  // of what is drawn
};

// openai-whisper's: temperatures 0, 0.2 … 1, and the thresholds 2.4, -1 and 0.6.
FallbackOptions whisper_fallback();
// Takes what a generation_config.json gives: `temperature` (a list; a number where do_sample is true), and the
// thresholds, null for none. Throws a data error at `where` for other values.
void read_fallback(const Json& generation, const std::string& where, FallbackOptions& options);
// Throws a usage error where values have no meaning.
void check_fallback(const FallbackOptions& options);

struct WindowScore {
  double avg_logprob = 0;  // natural logarithm, over the tokens said and the one that ends them, at temperature 1
  double compression_ratio = 0;
  std::optional<double> no_speech_prob;  // none where the tokenizer has no token for it
  double temperature = 0;                // of the text that was taken
};

// Bytes of a text in UTF-8 for each byte that zlib makes of it.
double compression_ratio(const std::string& text);

enum class Verdict { kTaken, kAgain, kSilence };
Verdict judge(const WindowScore& score, const FallbackOptions& options);
// Which of two texts that failed is the lesser evil: one that does not repeat itself, then the likelier one. (Where all
// temperatures fail, openai-whisper takes the last one's text. For a model that is unsure of everything that is noise.)
bool better(const WindowScore& one, const WindowScore& other, const FallbackOptions& options);

}  // namespace convoy
