// Text generation with a model's weights. The keys and values of earlier tokens are kept (planned, as everything), and
// several texts grow at once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "plan/generation_programs.h"
#include "runtime/executor.h"
#include "train/parameter_store.h"
#include "train/sampling.h"

namespace convoy {

struct GenerationOptions {
  std::int64_t max_new_tokens = 128;
  std::vector<std::int32_t> stop_tokens;  // end a text and are part of it
  SamplingOptions sampling;
  // Sees each new token of a text as it comes; false ends the text. May be empty; not called with beams.
  std::function<bool(std::size_t text, std::int32_t token)> on_token;
  // Changes the logits of the token after `made` (-infinity: not that one), before anything is drawn. May be empty.
  std::function<void(std::size_t text, std::span<const std::int32_t> made, std::span<float> logits)> rule;
  // Beam search with as many beams as the generator has room for: the text with the largest log-probability divided by
  // length^length_penalty, of those that `beams` live ones lead to. Nothing is drawn, and sampling counts for its
  // vocabulary alone.
  double length_penalty = 1.0;
  bool search = true;  // false: draw from one beam, as a generator without more does
  bool score = false;  // whether the log-probabilities of texts are added up; with beams they are
};

// What a generator is made for.
struct GeneratorRoom {
  DType dtype = DType::kF32;
  std::int64_t max_length = 0;     // tokens of a text, its prompt included
  std::int64_t batch = 1;          // texts at once
  std::int64_t beams = 1;          // of each text
  bool cache = true;               // false: every token is computed from the whole text
  std::int64_t audio_windows = 1;  // models that hear: windows of the longest recording
};

// A text to continue, and what was heard: models that hear take features of 1 … audio_windows windows, time by time
// [windows · frames, mel bins].
struct GenerationPrompt {
  std::vector<std::int32_t> ids;
  std::span<const float> features = {};
  // Log-mel frames of all windows up to the last that holds sound, for models that mask padding; 0: all.
  std::int64_t sound = 0;
  // New tokens that the rule forces: they count neither for max_new_tokens nor for a text's length.
  std::int64_t forced = 0;
  // Names the random numbers of this text; none: its place among the prompts does.
  std::optional<std::uint64_t> stream = {};
};

struct GeneratedText {
  std::vector<std::int32_t> tokens;  // new ones
  double log_probability = 0;        // natural logarithm, of all of them after the rule, at temperature 1; see `score`
  bool operator==(const GeneratedText&) const = default;
};

// Bytes of a generator.
std::size_t generator_bytes(const WorkspaceSizes& workspaces, const Model& model, const GeneratorRoom& room);

class Generator {
 public:
  using Tokens = std::vector<std::int32_t>;

  // `batch` texts of up to `max_length` tokens each. `cache` false computes every token from the whole text, as does a
  // model whose rotary tables change with the length of the text within max_length.
  Generator(Device& device, const Model& model, DType dtype, std::int64_t max_length, std::int64_t batch = 1,
            bool cache = true);
  Generator(Device& device, const Model& model, const GeneratorRoom& room);
  ParameterStore& store() { return *store_; }
  std::size_t bytes() const { return programs_->sizes().total(); }
  std::size_t cache_bytes() const { return programs_->layout().bytes(Role::kCache); }
  bool has_cache() const { return programs_->shape().cache; }
  std::int64_t max_length() const { return max_length_; }

  // Logits after the last token of `ids`.
  std::vector<float> logits(const Tokens& ids);
  // Continues each prompt until a stop token, max_new_tokens or max_length; as many at once as the batch holds, a new
  // one where another has ended. A text does not depend on its neighbours but for rounding: each draws random numbers
  // of its own. Returns the new tokens. Throws a usage error for a prompt that leaves no room.
  std::vector<Tokens> generate(const std::vector<Tokens>& prompts, const GenerationOptions& options);
  std::vector<GeneratedText> generate_from(std::span<const GenerationPrompt> prompts, const GenerationOptions& options);

 private:
  struct Stage {
    std::int64_t tokens = 0, windows = 0;
    Program program;
    std::unique_ptr<Executor> executor;
  };
  // A text under way and the part of the cache that is its own.
  struct Text {
    std::size_t index = 0;
    std::int64_t slot = 0;
    Tokens ids;
    std::size_t prompt = 0;  // tokens of it
    RandomStream random;
    bool read = false;      // whether its keys and values are kept up to the last token but one
    std::int64_t clip = 0;  // the part of what was heard that is its own; beams of a text share it
    std::span<const float> features = {};
    std::int64_t sound = 0;
    std::int64_t most = 0;  // new tokens
    double log_probability = 0;
  };
  struct BeamGroup;
  using Logits = std::vector<std::vector<float>>;
  Stage& stage(CacheUse use, std::int64_t tokens, std::int64_t windows = 0);
  void put(const char* name, std::span<const std::byte> bytes);
  void put(const char* name, std::span<const std::int32_t> values) { put(name, std::as_bytes(values)); }
  void put_tables(std::int64_t length);
  // Encoder frames that a text is given of its windows: all, or with masks_padding those that are sound.
  std::int64_t heard_frames(const Text& text) const;
  void put_audio(std::span<Text* const> texts, const Stage& stage, std::span<const std::int32_t> ids);
  std::int64_t windows_of(const Text& text) const;
  Logits run(Stage& stage, std::size_t rows);
  Logits read_whole(std::span<Text* const> texts);
  Logits read_next(std::span<Text* const> texts);
  // After each of the texts, in their order.
  Logits next_logits(std::span<Text* const> texts);
  void apply_rule(const Text& text, std::vector<float>& logits, const GenerationOptions& options) const;
  void draw(Text& text, std::vector<float>& logits, const GenerationOptions& options) const;
  std::vector<GeneratedText> beam_search(std::span<const GenerationPrompt> prompts, const GenerationOptions& options);
  void advance(BeamGroup& group, std::span<std::vector<float>> logits);
  void copy_cache(std::int64_t from, std::int64_t to, std::int64_t rows);

  Device& device_;
  const Model& model_;
  std::int64_t max_length_, batch_, beams_;
  std::optional<AudioInput> audio_;
  std::unique_ptr<GenerationPrograms> programs_;
  std::map<std::tuple<CacheUse, std::int64_t, std::int64_t>, Stage> stages_;  // by padded tokens, and windows
  std::unique_ptr<Arenas> arenas_;
  std::unique_ptr<ParameterStore> store_;
  std::int64_t table_length_ = 0;
};

}  // namespace convoy
