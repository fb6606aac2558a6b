// Text generation with a model's weights. The keys and values of earlier tokens are kept (planned, as everything), and
// several texts grow at once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
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
  // Sees each new token of a text as it comes; false ends the text. May be empty.
  std::function<bool(std::size_t text, std::int32_t token)> on_token;
};

class Generator {
 public:
  using Tokens = std::vector<std::int32_t>;

  // `batch` texts of up to `max_length` tokens each. `cache` false computes every token from the whole text, as does a
  // model whose rotary tables change with the length of the text within max_length.
  Generator(Device& device, const Model& model, DType dtype, std::int64_t max_length, std::int64_t batch = 1,
            bool cache = true);
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

 private:
  struct Stage {
    std::int64_t tokens = 0;
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
    bool read = false;  // whether its keys and values are kept up to the last token but one
  };
  Stage& stage(CacheUse use, std::int64_t tokens);
  void put(const char* name, std::span<const std::int32_t> values);
  void put_tables(std::int64_t length);
  std::vector<std::vector<float>> run(Stage& stage, std::size_t rows);
  std::vector<std::vector<float>> read_whole(std::span<Text* const> texts);
  std::vector<std::vector<float>> read_next(std::span<Text* const> texts);
  void step(std::vector<Text>& active, const GenerationOptions& options);

  Device& device_;
  const Model& model_;
  std::int64_t max_length_, batch_;
  std::unique_ptr<GenerationPrograms> programs_;
  std::map<std::pair<CacheUse, std::int64_t>, Stage> stages_;  // by padded number of tokens
  std::unique_ptr<Arenas> arenas_;
  std::unique_ptr<ParameterStore> store_;
  std::int64_t table_length_ = 0;
};

}  // namespace convoy
