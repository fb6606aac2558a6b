// Text generation with a model's weights: the next token from the logits of the whole text so far.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/random.h"
#include "plan/program_set.h"
#include "runtime/executor.h"
#include "train/parameter_store.h"

namespace convoy {

struct SamplingOptions {
  double temperature = 1.0;  // 0 = always the most likely token
  std::int64_t top_k = 0;    // only the k most likely; 0 = all
  double top_p = 1.0;        // only the smallest set of tokens with this much probability
  double repetition_penalty =
      1.0;  // divides positive and multiplies negative logits of tokens already there (Keskar et al., 2019)
  std::int64_t vocab =
      0;  // only tokens below this one: a model may have more rows than its tokenizer has tokens; 0 = all
  std::uint64_t seed = 42;
};

// Draws one token from `logits`; `history` are the tokens so far.
std::int32_t sample_token(std::vector<float>& logits, const std::vector<std::int32_t>& history,
                          const SamplingOptions& options, RandomStream& random);

class Generator {
 public:
  // Texts of up to `max_length` tokens.
  Generator(Device& device, const Model& model, DType dtype, std::int64_t max_length);
  ParameterStore& store() { return *store_; }
  std::size_t bytes() const { return sizes_.total(); }

  // Logits after the last token of `ids`.
  std::vector<float> logits(const std::vector<std::int32_t>& ids);
  // Continues `ids` by up to `max_new_tokens`; ends after a stop token or at max_length. `on_token` sees each new token
  // as it comes (may be empty). Returns the new tokens, the stop token included.
  std::vector<std::int32_t> generate(std::vector<std::int32_t> ids, std::int64_t max_new_tokens,
                                     const std::vector<std::int32_t>& stop_tokens, const SamplingOptions& options,
                                     const std::function<void(std::int32_t)>& on_token = {});

 private:
  struct Stage {
    LogitsProgram made;
    std::unique_ptr<Executor> executor;
  };
  Stage& stage(std::int64_t length);

  Device& device_;
  const Model& model_;
  DType dtype_;
  std::int64_t max_length_;
  ArenaSizes sizes_;
  Layout layout_;
  std::map<std::int64_t, Stage> stages_;  // by padded length
  std::unique_ptr<Arenas> arenas_;
  std::unique_ptr<ParameterStore> store_;
};

}  // namespace convoy
