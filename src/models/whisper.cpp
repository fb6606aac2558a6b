#include "models/whisper.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/embedding.h"
#include "graph/ops/linear.h"
#include "models/audio_encoder.h"

namespace convoy {
namespace {

constexpr const char* kEmbedding = "model.decoder.embed_tokens.weight";
constexpr const char* kHead = "proj_out.weight";
constexpr double kNormEps = 1e-5;

AudioEncoderConfig encoder_config(const WhisperConfig& c) {
  AudioEncoderConfig made;
  made.prefix = "model.encoder.";
  made.mel_bins = c.mel_bins;
  made.hidden = c.hidden;
  made.intermediate = c.encoder_intermediate;
  made.layers = c.encoder_layers;
  made.heads = c.encoder_heads;
  made.positions = c.source_positions;
  made.norm_eps = kNormEps;
  made.init_std = c.init_std;
  made.frozen = c.freeze_encoder;
  made.masked = c.mask_audio_padding;
  return made;
}

class Whisper final : public Model {
 public:
  explicit Whisper(WhisperConfig config) : c_(config), encoder_(encoder_config(config)) { declare(); }

  std::string family() const override { return "whisper"; }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<FileTensor>& file_tensors() const override { return files_; }
  ModelGraph build(const GraphOptions& options) const override;
  std::int64_t vocab_size() const override { return c_.vocab; }
  std::int64_t max_positions() const override { return c_.target_positions; }
  bool positions_are_learned() const override { return true; }
  std::int64_t block_count() const override { return encoder_.blocks() + c_.decoder_layers; }
  void fill_tables(std::int64_t /*length*/, std::span<float> /*cosines*/, std::span<float> /*sines*/) const override {}
  bool tables_depend_on_length() const override { return false; }
  std::string base_prefix() const override { return "model."; }
  std::string tied_embedding() const override { return c_.tied ? kEmbedding : ""; }
  std::string tied_head() const override { return c_.tied ? kHead : ""; }
  bool is_buffer(const std::string& /*tensor*/) const override { return false; }
  std::optional<AudioInput> audio() const override {
    AudioInput input;
    input.mel_bins = c_.mel_bins;
    input.frames = 2 * c_.source_positions;
    input.exact_frames = !c_.mask_audio_padding;
    input.masks_padding = c_.mask_audio_padding;
    return input;
  }
  std::vector<BatchConstant> constants(const GraphOptions& options) const override;
  void mark_heard(const GraphOptions& options, std::span<const std::int32_t> lengths,
                  HeardInputs& inputs) const override;

 private:
  void declare();
  ValueId embed(GraphInputs& in) const;
  ValueId block(GraphInputs& in, ValueId x, ValueId audio, std::int64_t l) const;
  AttentionShape heads() const {
    AttentionShape shape;
    shape.heads = shape.kv_heads = c_.decoder_heads;
    shape.head_dim = c_.hidden / c_.decoder_heads;
    shape.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
    return shape;
  }

  WhisperConfig c_;
  AudioEncoder encoder_;
  std::vector<Parameter> parameters_;
  std::vector<FileTensor> files_;
  std::size_t embedding_ = 0;             // parameter; the table of positions is the next
  std::vector<std::size_t> layer_start_;  // index of each decoder layer's first parameter
  std::size_t final_norm_ = 0;
};

void Whisper::declare() {
  ParameterList list(parameters_, files_);
  const double std = c_.init_std;
  encoder_.declare(list);
  embedding_ = list.add({kEmbedding, {c_.vocab, c_.hidden}, std, 0, c_.pad_row, true});
  list.add({"model.decoder.embed_positions.weight", {c_.target_positions, c_.hidden}, std, 0, -1, true});
  for (std::int64_t l = 0; l < c_.decoder_layers; ++l) {
    const std::string p = fmt::format("model.decoder.layers.{}.", l);
    layer_start_.push_back(list.layer_norm(p + "self_attn_layer_norm", c_.hidden));
    list.projections(p + "self_attn.", {"q", "k", "v"}, c_.hidden, c_.hidden, std);
    list.linear(p + "self_attn.out_proj", c_.hidden, c_.hidden, std);
    list.layer_norm(p + "encoder_attn_layer_norm", c_.hidden);
    list.linear(p + "encoder_attn.q_proj", c_.hidden, c_.hidden, std);
    list.projections(p + "encoder_attn.", {"k", "v"}, c_.hidden, c_.hidden, std);
    list.linear(p + "encoder_attn.out_proj", c_.hidden, c_.hidden, std);
    list.layer_norm(p + "final_layer_norm", c_.hidden);
    list.linear(p + "fc1", c_.hidden, c_.decoder_intermediate, std);
    list.linear(p + "fc2", c_.decoder_intermediate, c_.hidden, std);
  }
  final_norm_ = list.layer_norm("model.decoder.layer_norm", c_.hidden);
  if (!c_.tied) list.add({kHead, {c_.vocab, c_.hidden}, std, 0, -1, true});
}

ValueId Whisper::embed(GraphInputs& in) const {
  Graph& g = in.graph();
  const ValueId tokens = in.weight(embedding_), places = in.weight(embedding_ + 1);
  if (!c_.scale_embedding)
    return g.add_op(Embedding{c_.pad_row}, {in.ids(), tokens, in.positions(), places}, {"embedded"})[0];
  const ValueId rows = g.add_op(Embedding{c_.pad_row}, {in.ids(), tokens}, {"rows"})[0];
  const ValueId scaled = g.add_op(Scale{std::sqrt(static_cast<double>(c_.hidden))}, {rows}, {"scaled"})[0];
  return g.add_op(Add{}, {scaled, g.add_op(Embedding{}, {in.positions(), places}, {"positions"})[0]}, {"embedded"})[0];
}

ValueId Whisper::block(GraphInputs& in, ValueId x, ValueId audio, std::int64_t l) const {
  Graph& g = in.graph();
  std::size_t p = layer_start_[static_cast<std::size_t>(l)];
  const auto add_branch = [&](ValueId branch) {
    x = g.add_op(Add{}, {x, in.linear(branch, p, true, "attention_out")}, {"residual"})[0];
  };
  const ValueId qkv = project(in, layer_normed(in, x, p, kNormEps), p, c_.hidden, 3, 1, "qkv");
  add_branch(in.attention(heads(), qkv, 0));
  const ValueId q = in.linear(layer_normed(in, x, p, kNormEps), p, true, "q");
  AttentionShape cross = heads();
  const std::int64_t rows = in.options().table_length > 0 ? in.options().tokens / in.options().table_length : 0;
  if (rows > 0) cross.row_tokens = in.options().audio_windows / rows * in.options().encoder_frames();
  cross.whole_rows = rows > 0 && in.options().tokens % in.options().table_length == 0 &&
                     in.options().kind != GraphKind::kLogits && !c_.mask_audio_padding;
  std::size_t kv = p;
  p += 2;  // weight and bias
  add_branch(in.cross_attention(cross, q, [&] { return project(in, audio, kv, c_.hidden, 2, 0, "kv"); }));
  return add_mlp(in, x, p, kNormEps);
}

ModelGraph Whisper::build(const GraphOptions& options) const {
  GraphInputs in(*this, options);
  Graph& g = in.graph();
  ValueId audio = kNoValue;
  if (options.cache.use != CacheUse::kExtend) {  // which has heard already
    AudioEncoder::require_audio(options);
    check(options.encoder_frames() == c_.source_positions || c_.mask_audio_padding,
          "Whisper takes windows of one length");
    audio = encoder_.build(in, 0);
  }
  ValueId x = embed(in);
  for (std::int64_t l = 0; l < c_.decoder_layers; ++l) {
    g.current_block = encoder_.blocks() + static_cast<int>(l);
    x = block(in, x, audio, l);
  }
  g.current_block = -1;
  std::size_t p = final_norm_;
  x = layer_normed(in, x, p, kNormEps);
  return in.finish(x, in.weight(c_.tied ? embedding_ : p));
}

std::vector<BatchConstant> Whisper::constants(const GraphOptions& options) const {
  std::vector<BatchConstant> all = encoder_.constants(options);
  if (c_.mask_audio_padding) return all;
  HeardInputs heard;
  mark_heard(options, whole_windows(options), heard);
  if (heard.key_begin.empty()) return all;
  all.push_back(BatchConstant::of(batch_input::kKeyBegin, DType::kI32, heard.key_begin));
  all.push_back(BatchConstant::of(batch_input::kKeyEnd, DType::kI32, heard.key_end));
  return all;
}

// A token sees the frames of its row's windows up to the last that is sound; in generation texts have no rows, and who
// runs it says what they see. A row without a recording sees a frame of silence: no sum is over nothing.
void Whisper::mark_heard(const GraphOptions& options, std::span<const std::int32_t> lengths,
                         HeardInputs& inputs) const {
  AudioEncoder::mark_heard(options, lengths, inputs);
  inputs.key_begin.clear();
  inputs.key_end.clear();
  if (options.tokens % options.table_length != 0 || options.cache.use != CacheUse::kNone) return;
  const std::int64_t rows = options.tokens / options.table_length;
  const std::int64_t windows = options.audio_windows / rows, frames = options.encoder_frames();
  for (std::int64_t t = 0; t < options.tokens; ++t) {
    const std::int64_t row = t / options.table_length;
    std::int64_t keys = 1;
    for (std::int64_t w = 0; w < windows; ++w) {
      const std::int64_t length = lengths[static_cast<std::size_t>(row * windows + w)];
      if (length > 0) keys = w * frames + length;
    }
    inputs.key_begin.push_back(static_cast<std::int32_t>(row * windows * frames));
    inputs.key_end.push_back(static_cast<std::int32_t>(row * windows * frames + keys));
  }
}

}  // namespace

WhisperConfig read_whisper_config(const ConfigReader& config, const ModelOptions& options) {
  WhisperConfig made;
  made.vocab = config.positive("vocab_size");
  made.hidden = config.positive("d_model");
  made.mel_bins = config.positive("num_mel_bins", 80);
  made.encoder_layers = config.positive("encoder_layers");
  made.encoder_heads = config.positive("encoder_attention_heads");
  made.encoder_intermediate = config.positive("encoder_ffn_dim");
  made.source_positions = config.positive("max_source_positions", 1500);
  made.decoder_layers = config.positive("decoder_layers");
  made.decoder_heads = config.positive("decoder_attention_heads");
  made.decoder_intermediate = config.positive("decoder_ffn_dim");
  made.target_positions = config.positive("max_target_positions", 448);
  for (const std::int64_t heads : {made.encoder_heads, made.decoder_heads}) {
    if (made.hidden % (2 * heads) != 0) {
      throw usage_error(fmt::format("'d_model' {} does not divide into {} heads of an even size", made.hidden, heads))
          .at(config.where());
    }
  }
  config.only("activation_function", "gelu", "Whisper's blocks use the exact GELU");
  for (const char* key :
       {"dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop"}) {
    config.only(key, 0.0, "set it to 0.0, as the published models have it");
  }
  config.only("apply_spec_augment", false,
              "masking of features is a setting of the run, not of the model: set it to false");
  made.scale_embedding = config.boolean("scale_embedding", false);
  made.tied = config.boolean("tie_word_embeddings", true);
  made.init_std = config.number("init_std", 0.02);
  made.freeze_encoder = options.freeze_encoder;
  made.mask_audio_padding = config.boolean(kMaskAudioPadding, false);
  if (config.has("pad_token_id") && !options.train_pad_row) {
    made.pad_row = config.integer("pad_token_id");
    if (made.pad_row < 0 || made.pad_row >= made.vocab)
      throw usage_error(fmt::format("'pad_token_id' {} is outside the vocabulary of {}", made.pad_row, made.vocab))
          .at(config.where());
  }
  return made;
}

std::unique_ptr<Model> make_whisper(WhisperConfig config) {
  return std::make_unique<Whisper>(config);
}

}  // namespace convoy
