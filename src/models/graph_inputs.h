// What the model files share when they build a graph: sources made on first use, and the two ends that all language
// models have.
#pragma once

#include <string>
#include <vector>

#include "graph/ops/attention.h"
#include "models/model.h"

namespace convoy {

class GraphInputs {
 public:
  GraphInputs(const Model& model, const GraphOptions& options);

  Graph& graph() { return made_.graph; }
  const GraphOptions& options() const { return options_; }
  ValueId weight(std::size_t parameter) const { return made_.weights[parameter]; }
  ValueId ids() { return per_token(batch_input::kIds, DType::kI32); }
  ValueId positions() { return per_token(batch_input::kPositions, DType::kI32); }
  ValueId seq_start() { return per_token(batch_input::kSeqStart, DType::kI32); }
  ValueId token_keys() { return per_token(batch_input::kTokenKeys, DType::kI64); }
  ValueId audio_positions() { return per_frame(batch_input::kAudioPositions); }
  ValueId audio_start() { return per_frame(batch_input::kAudioStart); }
  ValueId audio_rows() { return per_token(batch_input::kAudioRows, DType::kI32); }
  ValueId key_begin() { return per_token(batch_input::kKeyBegin, DType::kI32); }
  ValueId key_end() { return per_token(batch_input::kKeyEnd, DType::kI32); }
  // A batch input, made on first use.
  ValueId batch(const char* name, const TensorSpec& spec) { return source(name, spec); }
  ValueId rope_cos(std::int64_t half) { return table(batch_input::kRopeCos, half); }
  ValueId rope_sin(std::int64_t half) { return table(batch_input::kRopeSin, half); }

  // x·Wᵀ + b with parameter p, and p+1 as its bias where there is one; advances p past them.
  ValueId linear(ValueId x, std::size_t& p, bool bias, const std::string& name, bool transposed = false);
  // Attention over packed rows, with dropout in training; each call is another use of the random numbers. With a cache,
  // each call of causal attention has a part of it.
  ValueId attention(AttentionShape shape, ValueId qkv, double dropout);
  // Dropout in training, else x.
  ValueId dropout(ValueId x, double p);
  // The loss or the logits of normalised hidden states.
  ModelGraph finish(ValueId hidden, ValueId head);

 private:
  ValueId per_token(const char* name, DType dtype) { return source(name, {dtype, {options_.tokens}}); }
  ValueId per_frame(const char* name) {
    return source(name, {DType::kI32, {options_.audio_windows * options_.encoder_frames()}});
  }
  ValueId table(const char* name, std::int64_t half) {
    return source(name, {DType::kF32, {options_.table_length, half}});
  }
  ValueId source(const char* name, const TensorSpec& spec);
  ValueId cached_attention(const AttentionShape& shape, ValueId qkv);

  GraphOptions options_;
  ModelGraph made_;
  std::uint32_t uses_ = 0;
  int cached_layers_ = 0;
  std::vector<ValueId> caches_;  // after this program's tokens were added
};

}  // namespace convoy
