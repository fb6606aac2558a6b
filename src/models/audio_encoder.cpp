#include "models/audio_encoder.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "graph/ops/activation.h"
#include "graph/ops/compress.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/embedding.h"
#include "graph/ops/frames.h"
#include "graph/ops/linear.h"
#include "graph/ops/norm.h"
#include "graph/ops/rotary.h"

namespace convoy {

ValueId project(GraphInputs& in, ValueId x, std::size_t& p, std::int64_t width, std::int64_t count,
                std::int64_t without, const std::string& name) {
  Graph& g = in.graph();
  std::vector<BiasPart> parts;
  for (std::int64_t i = 0, from = 0; i < count; ++i) {
    if (i == without) continue;
    parts.push_back({from, i * width, width});
    from += width;
  }
  const ValueId weight = in.weight(p++);
  const ValueId bias = g.add_op(ExpandBias{count * width, std::move(parts)}, {in.weight(p++)}, {name + "_bias"})[0];
  return g.add_op(Linear{}, {x, weight, bias}, {name})[0];
}

ValueId layer_normed(GraphInputs& in, ValueId x, std::size_t& p, double eps) {
  const ValueId weight = in.weight(p++);
  const ValueId bias = in.weight(p++);
  return in.graph().add_op(LayerNorm{eps}, {x, weight, bias}, {"normed", "mean", "rstd"})[0];
}

ValueId add_mlp(GraphInputs& in, ValueId x, std::size_t& p, double eps) {
  Graph& g = in.graph();
  const ValueId hidden = in.linear(layer_normed(in, x, p, eps), p, true, "mlp_in");
  const ValueId branch = in.linear(g.add_op(Gelu{false}, {hidden}, {"mlp"})[0], p, true, "mlp_out");
  return g.add_op(Add{}, {x, branch}, {"residual"})[0];
}

void AudioEncoder::declare(ParameterList& list) {
  const bool whisper = c_.names == AudioEncoderConfig::Names::kWhisper;
  first_ = list.convolution(c_.prefix + "conv1", c_.mel_bins, c_.hidden, c_.init_std);
  list.convolution(c_.prefix + "conv2", c_.hidden, c_.hidden, c_.init_std);
  if (!c_.rotary()) {
    Parameter table{c_.prefix + "embed_positions.weight", {c_.positions, c_.hidden}};
    table.sinusoids = true;
    table.trainable = false;
    list.add(std::move(table));
  }
  for (std::int64_t l = 0; l < c_.layers; ++l) {
    const std::string p = fmt::format("{}layers.{}.", c_.prefix, l);
    const std::size_t at = list.layer_norm(p + (whisper ? "self_attn_layer_norm" : "input_layernorm"), c_.hidden);
    list.projections(p + "self_attn.", {"q", "k", "v"}, c_.hidden, c_.hidden, c_.init_std);
    list.linear(p + (whisper ? "self_attn.out_proj" : "self_attn.o_proj"), c_.hidden, c_.hidden, c_.init_std);
    list.layer_norm(p + (whisper ? "final_layer_norm" : "post_attention_layernorm"), c_.hidden);
    list.linear(p + (whisper ? "fc1" : "mlp.fc1"), c_.hidden, c_.intermediate, c_.init_std);
    const std::size_t last = list.linear(p + (whisper ? "fc2" : "mlp.fc2"), c_.intermediate, c_.hidden, c_.init_std);
    if (l == 0) layers_at_ = at;
    parameters_ = last + 2 - at;
  }
  list.layer_norm(c_.prefix + (whisper ? "layer_norm" : "norm"), c_.hidden);
  if (c_.frozen) list.freeze_from(first_);
}

ValueId AudioEncoder::stem(GraphInputs& in) const {
  Graph& g = in.graph();
  const GraphOptions& options = in.options();
  const DType given = options.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  ValueId x =
      in.batch(batch_input::kAudioFeatures, {given, {options.audio_windows * options.audio_frames, c_.mel_bins}});
  if (given != options.dtype) x = g.add_op(Convert{options.dtype}, {x}, {"features"})[0];
  std::size_t p = first_;
  for (const std::int64_t stride : {1, 2}) {
    const ValueId columns = g.add_op(Unfold{options.audio_frames, stride}, {x}, {"columns"})[0];
    x = g.add_op(Gelu{false}, {in.linear(columns, p, true, "convolved")}, {"frames"})[0];
  }
  if (c_.rotary()) return x;
  const ValueId positions = g.add_op(Embedding{}, {in.audio_positions(), in.weight(p)}, {"positions"})[0];
  return g.add_op(Add{}, {x, positions}, {"embedded"})[0];
}

ValueId AudioEncoder::block(GraphInputs& in, ValueId x, std::int64_t l) const {
  Graph& g = in.graph();
  std::size_t p = layers_at_ + static_cast<std::size_t>(l) * parameters_;
  ValueId qkv = project(in, layer_normed(in, x, p, c_.norm_eps), p, c_.hidden, 3, 1, "qkv");
  if (c_.rotary()) {
    const std::int64_t half = c_.rope.rotary_dim / 2;
    const TensorSpec table{DType::kF32, {in.options().encoder_frames(), half}};
    qkv = g.add_op(Rotary{2 * c_.heads, c_.head_dim(), c_.rope.rotary_dim, c_.rope.pairing},
                   {qkv, in.batch(batch_input::kAudioRopeCos, table), in.batch(batch_input::kAudioRopeSin, table),
                    in.audio_positions()},
                   {"qkv_rotated"})[0];
  }
  AttentionShape shape;
  shape.heads = shape.kv_heads = c_.heads;
  shape.head_dim = c_.head_dim();
  shape.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  shape.causal = false;
  shape.row_tokens = in.options().encoder_frames();
  shape.whole_rows = !c_.masked;
  const ValueId a = g.add_op(Attention{shape}, {qkv, in.audio_start(), kNoValue}, {"attention", "lse"})[0];
  x = g.add_op(Add{}, {x, in.linear(a, p, true, "attention_out")}, {"residual"})[0];
  return add_mlp(in, x, p, c_.norm_eps);
}

ValueId AudioEncoder::build(GraphInputs& in, int first_block) const {
  require_audio(in.options());
  Graph& g = in.graph();
  const GraphOptions& options = in.options();
  check(options.encoder_frames() <= c_.positions, "windows of audio longer than the encoder's positions");
  const int outer = g.current_block;
  g.current_block = first_block;
  ValueId x = stem(in);
  for (std::int64_t l = 0; l < c_.layers; ++l) {
    g.current_block = first_block + 1 + static_cast<int>(l);
    x = block(in, x, l);
  }
  g.current_block = outer;
  std::size_t p = layers_at_ + static_cast<std::size_t>(c_.layers) * parameters_;
  return layer_normed(in, x, p, c_.norm_eps);
}

void AudioEncoder::require_audio(const GraphOptions& options) {
  if (options.audio_windows > 0 && options.audio_frames > 0) return;
  throw usage_error("this model hears: it does nothing from text alone").mend("train it from a manifest of recordings");
}

std::vector<std::int32_t> whole_windows(const GraphOptions& options) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(options.audio_windows),
                                   static_cast<std::int32_t>(options.encoder_frames()));
}

// A window's sound is a document, and so is each frame of its padding.
void AudioEncoder::mark_heard(const GraphOptions& options, std::span<const std::int32_t> lengths, HeardInputs& inputs) {
  const std::int64_t frames = options.encoder_frames();
  check(static_cast<std::int64_t>(lengths.size()) == options.audio_windows, "lengths of other windows");
  inputs.start.clear();
  for (std::int64_t i = 0; i < options.audio_windows * frames; ++i) {
    const std::int64_t place = i % frames;
    const bool sound = place < lengths[static_cast<std::size_t>(i / frames)];
    inputs.start.push_back(static_cast<std::int32_t>(sound ? i - place : i));
  }
}

std::vector<BatchConstant> AudioEncoder::constants(const GraphOptions& options) const {
  const std::int64_t frames = options.encoder_frames();
  std::vector<std::int32_t> positions;
  for (std::int64_t i = 0; i < options.audio_windows * frames; ++i)
    positions.push_back(static_cast<std::int32_t>(i % frames));
  std::vector<BatchConstant> all;
  all.push_back(BatchConstant::of(batch_input::kAudioPositions, DType::kI32, positions));
  if (!c_.masked) {
    HeardInputs heard;
    mark_heard(options, whole_windows(options), heard);
    all.push_back(BatchConstant::of(batch_input::kAudioStart, DType::kI32, heard.start));
  }
  if (c_.rotary()) {
    std::vector<float> cosines(static_cast<std::size_t>(frames * c_.rope.rotary_dim / 2)), sines(cosines.size());
    fill_rope_tables(c_.rope, frames, cosines, sines);
    all.push_back(BatchConstant::of(batch_input::kAudioRopeCos, DType::kF32, cosines));
    all.push_back(BatchConstant::of(batch_input::kAudioRopeSin, DType::kF32, sines));
  }
  return all;
}

}  // namespace convoy
