// The audio encoder of Whisper (Radford et al., 2022) and GLM-ASR: two convolutions over log-mel frames, then pre-norm
// blocks of bidirectional attention over a whole window, padding included (or, masked, over a recording alone).
#pragma once

#include "models/graph_inputs.h"
#include "models/parameter_list.h"
#include "models/rope.h"

namespace convoy {

struct AudioEncoderConfig {
  // How files name the tensors of a block.
  enum class Names : std::uint8_t { kWhisper, kGlmAsr };
  Names names = Names::kWhisper;
  std::string prefix;  // of all tensors, "model.encoder."
  std::int64_t mel_bins = 0, hidden = 0, intermediate = 0, layers = 0, heads = 0;
  std::int64_t positions = 0;  // most encoder frames of a window
  double norm_eps = 1e-5;
  double init_std = 0.02;
  // Rotary positions where rotary_dim is not 0; else a table of positions, which is not trained.
  RopeConfig rope;

  bool frozen = false;
  bool masked = false;  // AudioInput::masks_padding

  bool rotary() const { return rope.rotary_dim > 0; }
  std::int64_t head_dim() const { return hidden / heads; }
};

class AudioEncoder {
 public:
  explicit AudioEncoder(AudioEncoderConfig config) : c_(std::move(config)) {}

  const AudioEncoderConfig& config() const { return c_; }
  // Adds the encoder's tensors to a model's.
  void declare(ParameterList& list);
  // Blocks of the graph that build() makes: the convolutions are the first.
  int blocks() const { return static_cast<int>(c_.layers) + 1; }
  // [windows·frames/2, hidden], normalised; the frames are those of the batch inputs. Numbers its blocks from
  // `first_block`.
  ValueId build(GraphInputs& in, int first_block) const;
  // Throws a usage error for a graph of text alone.
  static void require_audio(const GraphOptions& options);
  // The values of positions, rotary tables and, where padding is heard, window starts.
  std::vector<BatchConstant> constants(const GraphOptions& options) const;
  // HeardInputs::start.
  static void mark_heard(const GraphOptions& options, std::span<const std::int32_t> lengths, HeardInputs& inputs);

 private:
  ValueId stem(GraphInputs& in) const;
  ValueId block(GraphInputs& in, ValueId x, std::int64_t l) const;

  AudioEncoderConfig c_;
  std::size_t first_ = 0;       // parameter
  std::size_t layers_at_ = 0;   // first parameter of the first layer
  std::size_t parameters_ = 0;  // of a layer
};

// Lengths of windows that are sound to their end.
std::vector<std::int32_t> whole_windows(const GraphOptions& options);
// A product with fused projections of `width` each, of which those at the places `without` (from 0) have no bias; as
// ParameterList::projections declares them. Advances p past weight and bias.
ValueId project(GraphInputs& in, ValueId x, std::size_t& p, std::int64_t width, std::int64_t count,
                std::int64_t without, const std::string& name);
// LayerNorm with parameters p and p + 1.
ValueId layer_normed(GraphInputs& in, ValueId x, std::size_t& p, double eps);
// Σ of x and fc2(gelu(fc1(norm(x)))), with the parameters from p on.
ValueId add_mlp(GraphInputs& in, ValueId x, std::size_t& p, double eps);

}  // namespace convoy
