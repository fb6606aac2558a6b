#include <fmt/format.h>

#include <cmath>

#include "graph/ops/activation.h"
#include "graph/ops/attention.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/embedding.h"
#include "graph/ops/linear.h"
#include "graph/ops/norm.h"
#include "models/decoder_config.h"
#include "models/front_end.h"
#include "models/graph_inputs.h"

namespace convoy {
namespace {

// A run of rows of a parameter, by the last part of its name in a file.
struct Part {
  std::string name;
  std::int64_t rows;
};

class Decoder final : public Model {
 public:
  Decoder(DecoderConfig config, std::unique_ptr<FrontEnd> front_end)
      : c_(std::move(config)), front_end_(std::move(front_end)) {
    declare();
  }

  std::string family() const override { return c_.family; }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<FileTensor>& file_tensors() const override { return files_; }
  ModelGraph build(const GraphOptions& options) const override;
  std::int64_t vocab_size() const override { return c_.vocab; }
  std::int64_t max_positions() const override { return c_.max_positions; }
  bool positions_are_learned() const override { return false; }
  std::int64_t block_count() const override { return c_.layers + (front_end_ ? front_end_->blocks() : 0); }
  void fill_tables(std::int64_t length, std::span<float> cosines, std::span<float> sines) const override {
    fill_rope_tables(c_.rope, length, cosines, sines);
  }
  bool tables_depend_on_length() const override { return c_.rope.depends_on_length(); }
  std::string base_prefix() const override { return chatglm() || front_end_ ? "" : "model."; }
  std::string tied_embedding() const override { return c_.tied ? embedding_name() : ""; }
  std::string tied_head() const override { return c_.tied ? head_name() : ""; }
  bool is_buffer(const std::string& tensor) const override {
    return tensor.ends_with("rotary_emb.inv_freq") || tensor.ends_with("rotary_pos_emb.inv_freq");
  }
  std::optional<AudioInput> audio() const override {
    return front_end_ ? std::optional(front_end_->audio()) : std::nullopt;
  }
  std::vector<BatchConstant> constants(const GraphOptions& options) const override {
    return front_end_ ? front_end_->constants(options) : std::vector<BatchConstant>{};
  }
  void mark_heard(const GraphOptions& options, std::span<const std::int32_t> lengths,
                  HeardInputs& inputs) const override {
    if (front_end_) front_end_->mark_heard(options, lengths, inputs);
  }
  std::string renamed(const std::string& tensor) const override {
    return front_end_ ? front_end_->renamed(tensor) : tensor;
  }
  bool writes_all_names() const override { return front_end_ != nullptr; }

 private:
  bool chatglm() const { return c_.names == DecoderConfig::Names::kChatGlm; }
  std::string embedding_name() const {
    return chatglm() ? "transformer.embedding.word_embeddings.weight" : c_.outer + "model.embed_tokens.weight";
  }
  std::string head_name() const { return chatglm() ? "transformer.output_layer.weight" : c_.outer + "lm_head.weight"; }
  std::string layer_prefix(std::int64_t l) const {
    return chatglm() ? fmt::format("transformer.encoder.layers.{}.", l)
                     : fmt::format("{}model.layers.{}.", c_.outer, l);
  }

  std::size_t add(Parameter parameter, const std::vector<Part>& parts);
  std::size_t norm(const std::string& name, std::int64_t width);
  // A weight and, if there is one, its bias, stored as `parts` under "PREFIX part.weight".
  std::size_t linear(const std::string& name, const std::string& prefix, const std::vector<Part>& parts,
                     std::int64_t in, bool bias);
  void declare();
  void declare_layer(std::int64_t l);

  ValueId block(GraphInputs& in, ValueId x, std::int64_t l) const;
  ValueId attention(GraphInputs& in, ValueId h, std::int64_t l, std::size_t& p) const;

  DecoderConfig c_;
  std::unique_ptr<FrontEnd> front_end_;  // or null
  std::size_t final_norm_ = 0;           // parameter
  std::vector<Parameter> parameters_;
  std::vector<FileTensor> files_;
  std::vector<std::size_t> layer_start_;  // index of each layer's first parameter
};

std::size_t Decoder::add(Parameter parameter, const std::vector<Part>& parts) {
  std::int64_t row = 0;
  for (const Part& part : parts) {
    std::vector<std::int64_t> dims(parameter.shape.dims().begin(), parameter.shape.dims().end());
    dims[0] = part.rows;
    files_.push_back({part.name, Shape(dims), parameters_.size(), row});
    row += part.rows;
  }
  parameters_.push_back(std::move(parameter));
  return parameters_.size() - 1;
}

std::size_t Decoder::norm(const std::string& name, std::int64_t width) {
  return add({name, {width}, 0, 1, -1, false}, {{name, width}});
}

std::size_t Decoder::linear(const std::string& name, const std::string& prefix, const std::vector<Part>& parts,
                            std::int64_t in, bool bias) {
  std::int64_t rows = 0;
  std::vector<Part> weights, biases;
  for (const Part& part : parts) {
    rows += part.rows;
    weights.push_back({prefix + part.name + ".weight", part.rows});
    biases.push_back({prefix + part.name + ".bias", part.rows});
  }
  const std::size_t index = add({prefix + name + ".weight", {rows, in}, c_.init_std, 0, -1, true}, weights);
  if (bias) add({prefix + name + ".bias", {rows}, 0, 0, -1, false}, biases);
  return index;
}

void Decoder::declare_layer(std::int64_t l) {
  layer_start_.push_back(parameters_.size());
  const std::string p = layer_prefix(l);
  const std::int64_t q = c_.heads * c_.head_dim;
  const std::int64_t kv = c_.kv_heads * c_.head_dim;
  norm(p + "input_layernorm.weight", c_.hidden);
  if (chatglm()) {
    linear("qkv", p + "self_attention.", {{"query_key_value", q + 2 * kv}}, c_.hidden, c_.qkv_bias);
    linear("o", p + "self_attention.", {{"dense", c_.hidden}}, q, c_.o_bias);
    norm(p + "post_attention_layernorm.weight", c_.hidden);
    linear("gate_up", p + "mlp.", {{"dense_h_to_4h", 2 * c_.intermediate}}, c_.hidden, c_.mlp_bias);
    linear("down", p + "mlp.", {{"dense_4h_to_h", c_.hidden}}, c_.intermediate, c_.mlp_bias);
    return;
  }
  linear("qkv_proj", p + "self_attn.", {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}}, c_.hidden, c_.qkv_bias);
  if (c_.qk_norm) {
    norm(p + "self_attn.q_norm.weight", c_.head_dim);
    norm(p + "self_attn.k_norm.weight", c_.head_dim);
  }
  linear("o_proj", p + "self_attn.", {{"o_proj", c_.hidden}}, q, c_.o_bias);
  if (c_.sandwich_norms) norm(p + "post_self_attn_layernorm.weight", c_.hidden);
  norm(p + "post_attention_layernorm.weight", c_.hidden);
  const std::int64_t f = c_.intermediate;
  const std::vector<Part> gate_up = c_.names == DecoderConfig::Names::kFusedGateUp
                                        ? std::vector<Part>{{"gate_up_proj", 2 * f}}
                                        : std::vector<Part>{{"gate_proj", f}, {"up_proj", f}};
  linear("gate_up_proj", p + "mlp.", gate_up, c_.hidden, c_.mlp_bias);
  linear("down_proj", p + "mlp.", {{"down_proj", c_.hidden}}, f, c_.mlp_bias);
  if (c_.sandwich_norms) norm(p + "post_mlp_layernorm.weight", c_.hidden);
}

void Decoder::declare() {
  add({embedding_name(), {c_.vocab, c_.hidden}, c_.init_std, 0, c_.pad_row, true}, {{embedding_name(), c_.vocab}});
  for (std::int64_t l = 0; l < c_.layers; ++l) declare_layer(l);
  final_norm_ =
      norm(chatglm() ? "transformer.encoder.final_layernorm.weight" : c_.outer + "model.norm.weight", c_.hidden);
  if (!c_.tied) add({head_name(), {c_.vocab, c_.hidden}, c_.init_std, 0, -1, true}, {{head_name(), c_.vocab}});
  if (!front_end_) return;
  ParameterList list(parameters_, files_);
  front_end_->declare(list);
}

ValueId Decoder::attention(GraphInputs& in, ValueId h, std::int64_t l, std::size_t& p) const {
  Graph& g = in.graph();
  ValueId qkv = in.linear(h, p, c_.qkv_bias, "qkv");
  if (c_.qk_norm) {
    const ValueId q_weight = in.weight(p++);
    const ValueId k_weight = in.weight(p++);
    qkv = g.add_op(QkNorm{c_.heads, c_.kv_heads, c_.head_dim, c_.norm_eps}, {qkv, q_weight, k_weight},
                   {"qkv_normed", "q_rstd", "k_rstd"})[0];
  }
  const std::int64_t half = c_.rope.rotary_dim / 2;
  qkv = g.add_op(Rotary{c_.heads + c_.kv_heads, c_.head_dim, c_.rope.rotary_dim, c_.rope.pairing},
                 {qkv, in.rope_cos(half), in.rope_sin(half), in.positions()}, {"qkv_rotated"})[0];
  AttentionShape shape;
  shape.heads = c_.heads;
  shape.kv_heads = c_.kv_heads;
  shape.head_dim = c_.head_dim;
  shape.scale = 1.0 / std::sqrt(static_cast<double>(c_.head_dim));
  shape.window = c_.windows[static_cast<std::size_t>(l)];
  const ValueId a = in.attention(shape, qkv, c_.attention_dropout);
  return in.linear(a, p, c_.o_bias, "attention_out");
}

ValueId Decoder::block(GraphInputs& in, ValueId x, std::int64_t l) const {
  Graph& g = in.graph();
  g.current_block = static_cast<int>(l);
  std::size_t p = layer_start_[static_cast<std::size_t>(l)];
  const auto normed = [&](ValueId v) {
    return g.add_op(RmsNorm{c_.norm_eps}, {v, in.weight(p++)}, {"normed", "rstd"})[0];
  };
  ValueId branch = attention(in, normed(x), l, p);
  if (c_.sandwich_norms) branch = normed(branch);
  x = g.add_op(Add{}, {x, branch}, {"residual"})[0];
  const ValueId gate_up = in.linear(normed(x), p, c_.mlp_bias, "gate_up");
  branch = in.linear(g.add_op(SwiGlu{}, {gate_up}, {"mlp"})[0], p, c_.mlp_bias, "mlp_out");
  if (c_.sandwich_norms) branch = normed(branch);
  return g.add_op(Add{}, {x, branch}, {"residual"})[0];
}

ModelGraph Decoder::build(const GraphOptions& options) const {
  GraphInputs in(*this, options);
  Graph& g = in.graph();
  ValueId x = g.add_op(Embedding{c_.pad_row}, {in.ids(), in.weight(0)}, {"embedded"})[0];
  // The next tokens of a text are never audio.
  if (front_end_ && options.cache.use != CacheUse::kExtend) x = front_end_->embed(in, x, static_cast<int>(c_.layers));
  for (std::int64_t l = 0; l < c_.layers; ++l) x = block(in, x, l);
  g.current_block = -1;
  x = g.add_op(RmsNorm{c_.norm_eps}, {x, in.weight(final_norm_)}, {"normed", "rstd"})[0];
  return in.finish(x, in.weight(c_.tied ? 0 : final_norm_ + 1));
}

}  // namespace

std::unique_ptr<Model> make_decoder(DecoderConfig config, std::unique_ptr<FrontEnd> front_end) {
  return std::make_unique<Decoder>(std::move(config), std::move(front_end));
}

}  // namespace convoy
