// Speech to text with Whisper and GLM-ASR: recordings in windows, several at once, as text with times.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/subtitles.h"
#include "train/generator.h"
#include "train/speech_fallback.h"
#include "train/speech_prompt.h"
#include "train/whisper_rules.h"

namespace convoy {

struct TranscriberOptions {
  DType dtype = DType::kF32;
  // Whisper: the language spoken ("" = let the model tell), or "none" for a prompt without one, and the task.
  std::string language, task = "transcribe";
  bool timestamps = false;  // Whisper: let the model say when; a usage error where its tokenizer has no times
  std::int64_t batch = 8;   // windows at once
  std::int64_t beams = 1;
  double length_penalty = 1.0;
  std::int64_t max_new_tokens = 0;  // of a window; 0: 256, or what a table of positions leaves
  std::int64_t max_length = 0;      // the most tokens of a text with its prompt; 0: what max_new_tokens asks for
  std::int64_t windows = 1;         // GLM-ASR: windows that one text may hear
  bool cache = true;
  bool scores = false;       // whether segments come with scores; thresholds need them
  FallbackOptions fallback;  // what is done about windows of bad scores
  // Whisper: what was said before, or is to be taken for it at a recording's beginning, stands before each window's
  // text.
  bool condition_on_prev = false;
  std::string initial_prompt;
  // Whether a recording's next window waits for the text of the one before.
  bool window_by_window() const { return timestamps || condition_on_prev; }
};

// Samples at 16 kHz.
struct Clip {
  std::vector<float> samples;
  std::string language = {};  // "": the options'
};

struct Transcript {
  std::string text, language;       // the language that was given or told; "" where there is none
  double seconds = 0;               // of the recording
  std::vector<Cue> segments;        // with the model's times, else one for each window
  std::vector<WindowScore> scores;  // with `scores`: of each segment's window
  std::int64_t tokens = 0;          // made
};

struct TranscriberCounts {
  std::int64_t windows = 0, again = 0, silent = 0;  // heard; decoded more than once; left out
};

class Transcriber {
 public:
  // `config` is the model's, `generation` its generation_config.json or the same. Throws a usage error where the
  // tokenizer lacks what the options ask for.
  Transcriber(Device& device, const Model& model, const Tokenizer& tokenizer, const Json& config,
              const Json& generation, const std::string& where, const TranscriberOptions& options);
  // Its weights are to be set before the first transcript.
  ParameterStore& store() { return generator_->store(); }
  std::size_t bytes() const { return generator_->bytes(); }
  // Since it was made.
  const TranscriberCounts& counts() const { return counts_; }

  // Takes recordings from `next` until it gives none, and gives each one's transcript, numbered in the order of taking,
  // to `done` as soon as it is whole. Holds a batch of recordings at most, and the whole of each.
  void transcribe(const std::function<std::optional<Clip>()>& next,
                  const std::function<void(std::size_t index, Transcript transcript)>& done);

 private:
  struct Open {
    std::size_t index = 0;
    Clip recording;
    std::int64_t at = 0;  // samples that are done with, or under way
    Transcript made;
    std::uint64_t key = 0;             // of what it holds
    std::vector<TokenId> before = {};  // what stands before the next window's text
  };
  // A text of a window.
  struct Attempt {
    std::vector<TokenId> said;  // with the opening and the token that ends it
    WindowScore score;
    Verdict verdict = Verdict::kTaken;
  };
  struct Window {
    Open* open = nullptr;
    std::int64_t begin = 0, end = 0;  // samples
    std::vector<float> features;
    GenerationPrompt prompt;
    WhisperRules::Opening opening;  // of its text
    std::optional<double> no_speech_prob;
    Attempt taken;
  };
  std::int64_t chunk() const { return features_.window_samples() * features_.windows(); }
  void set_whisper(const Json& generation);
  GeneratorRoom room(const Model& model) const;
  void take_windows(Open& open, std::vector<Window>& windows) const;
  bool set_prompt(Window& window) const;
  void write_features(std::vector<Window>& windows) const;
  void decode(std::vector<Window>& windows);
  std::vector<Attempt> decode(std::span<Window* const> windows, std::size_t number);
  std::span<const TokenId> transcript_of(const Window& window, std::span<const TokenId> said) const;
  std::string text_of(std::span<const TokenId> said) const;
  bool is_stop(TokenId id) const;
  void finish(Window& window) const;

  const Tokenizer& tokenizer_;
  bool english_;  // knows nothing else
  TranscriberOptions options_;
  SpeechPrompt prompt_;
  SpeechFeatures features_;
  bool told_ = false;  // whether the model itself tells the language
  WhisperRules::Opening opening_;
  std::optional<WhisperRules> rules_;
  std::optional<TokenId> no_speech_;  // the token of silence
  std::optional<TokenId> before_;     // stands before earlier text
  std::vector<TokenId> initial_prompt_;
  std::size_t most_before_ = 0;  // tokens of earlier text
  std::vector<TokenId> unsaid_;  // special tokens that are no transcript
  std::unique_ptr<Generator> generator_;
  GenerationOptions generation_;
  TranscriberCounts counts_;
};

// Joins transcripts of neighbouring windows: with a space but where Chinese, Japanese or white space meets.
std::string join_texts(const std::string& before, const std::string& after);

}  // namespace convoy
