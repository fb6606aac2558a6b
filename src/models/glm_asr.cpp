#include "models/glm_asr.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "graph/ops/activation.h"
#include "graph/ops/frames.h"
#include "models/audio_encoder.h"
#include "models/decoder_config.h"
#include "models/front_end.h"

namespace convoy {
namespace {

constexpr std::int64_t kMerged = 4;  // encoder frames of a row

class GlmAsrFrontEnd final : public FrontEnd {
 public:
  GlmAsrFrontEnd(AudioEncoderConfig config, std::int64_t text_width, std::int64_t audio_token)
      : encoder_(std::move(config)), text_width_(text_width), audio_token_(audio_token) {}

  void declare(ParameterList& list) override {
    encoder_.declare(list);
    const AudioEncoderConfig& c = encoder_.config();
    projector_ = list.linear("multi_modal_projector.linear_1", kMerged * c.hidden, 2 * text_width_, c.init_std);
    list.linear("multi_modal_projector.linear_2", 2 * text_width_, text_width_, c.init_std);
  }

  ValueId embed(GraphInputs& in, ValueId embedded, int first_block) const override {
    Graph& g = in.graph();
    const GraphOptions& options = in.options();
    AudioEncoder::require_audio(options);
    check(options.encoder_frames() % kMerged == 0, "windows of audio that do not divide into merged frames");
    const ValueId frames = encoder_.build(in, first_block);
    const std::int64_t rows = options.audio_windows * options.encoder_frames() / kMerged;
    const ValueId merged = g.add_op(Reshape{Shape{rows, kMerged * encoder_.config().hidden}}, {frames}, {"merged"})[0];
    std::size_t p = projector_;
    const ValueId hidden = g.add_op(Gelu{false}, {in.linear(merged, p, true, "projected")}, {"projected"})[0];
    const ValueId audio = in.linear(hidden, p, true, "audio");
    return g.add_op(ReplaceRows{}, {embedded, audio, in.audio_rows()}, {"embedded"})[0];
  }

  int blocks() const override { return encoder_.blocks(); }

  AudioInput audio() const override {
    AudioInput input;
    input.mel_bins = encoder_.config().mel_bins;
    input.frame_multiple = 2 * kMerged;
    input.frames = 2 * encoder_.config().positions / input.frame_multiple * input.frame_multiple;
    input.audio_token = audio_token_;
    input.frames_per_token = 2 * kMerged;
    input.masks_padding = encoder_.config().masked;
    return input;
  }

  std::vector<BatchConstant> constants(const GraphOptions& options) const override {
    return encoder_.constants(options);
  }
  void mark_heard(const GraphOptions& options, std::span<const std::int32_t> lengths,
                  HeardInputs& inputs) const override {
    AudioEncoder::mark_heard(options, lengths, inputs);
  }

  // transformers calls the tensors otherwise in memory (model.…), and writes fresh models with `model` once too often.
  std::string renamed(const std::string& tensor) const override {
    const auto moved = [&](const std::string& from, const std::string& to) { return to + tensor.substr(from.size()); };
    for (const std::string stray : {"language_model.model.model.", "model.language_model."}) {
      if (tensor.starts_with(stray)) return moved(stray, "language_model.model.");
    }
    for (const std::string head : {"lm_head.", "language_model.model.lm_head.", "model.lm_head."}) {
      if (tensor.starts_with(head)) return moved(head, "language_model.lm_head.");
    }
    for (const std::string part : {"audio_tower.", "multi_modal_projector."}) {
      if (tensor.starts_with("model." + part)) return moved("model." + part, part);
    }
    return tensor;
  }

 private:
  AudioEncoder encoder_;
  std::int64_t text_width_, audio_token_;
  std::size_t projector_ = 0;  // index of its first parameter
};

AudioEncoderConfig read_encoder(const ConfigReader& config) {
  AudioEncoderConfig made;
  made.names = AudioEncoderConfig::Names::kGlmAsr;
  made.prefix = "audio_tower.";
  made.mel_bins = config.positive("num_mel_bins", 128);
  made.hidden = config.positive("hidden_size", 1280);
  made.intermediate = config.positive("intermediate_size", 5120);
  made.layers = config.positive("num_hidden_layers", 32);
  made.heads = config.positive("num_attention_heads", 20);
  made.positions = config.positive("max_position_embeddings", 1500);
  made.init_std = config.number("initializer_range", 0.02);
  config.only("num_key_value_heads", made.heads, "the encoder has as many key heads as query heads");
  config.only("hidden_act", "gelu", "the encoder's blocks use the exact GELU");
  config.only("attention_dropout", 0.0, "set it to 0.0, as the published model has it");
  if (made.hidden % made.heads != 0)
    throw usage_error("'hidden_size' is not a multiple of 'num_attention_heads'").at(config.where());
  config.only("head_dim", made.hidden / made.heads, "the encoder's heads divide its width");
  if (2 * made.positions < 2 * 2 * kMerged)
    throw usage_error(fmt::format("'max_position_embeddings' should be at least {}", 2 * kMerged)).at(config.where());
  DecoderConfig rope;
  rope.head_dim = made.hidden / made.heads;
  rope.max_positions = made.positions;
  read_rope(config, 0.5, 10000, {}, rope);
  if (rope.rope.depends_on_length())
    throw usage_error("the encoder's rotary positions depend on no length").at(config.where());
  made.rope = rope.rope;
  return made;
}

}  // namespace

std::unique_ptr<Model> make_glm_asr(const ConfigReader& config, const ModelOptions& options) {
  const auto text = config.object("text_config");
  const auto audio = config.object("audio_config");
  if (!text || !audio)
    throw usage_error("the configuration has no 'text_config' or no 'audio_config'").at(config.where());
  const std::string text_type = text->text("model_type", "llama");
  if (text_type != "llama") {
    throw usage_error(fmt::format("'model_type' {} is not supported", text_type))
        .at(text->where())
        .mend("GLM-ASR's decoder is a llama");
  }
  config.only("projector_hidden_act", "gelu", "the projector uses the exact GELU");
  DecoderConfig decoder = read_decoder_config("llama", *text, options);
  decoder.family = "glmasr";
  decoder.outer = "language_model.";
  decoder.tied = config.boolean("tie_word_embeddings", true);
  const std::int64_t token = config.integer("audio_token_id", 59260);
  if (token < 0 || token >= decoder.vocab)
    throw usage_error(fmt::format("'audio_token_id' {} is outside the vocabulary of {}", token, decoder.vocab))
        .at(config.where());
  AudioEncoderConfig encoder = read_encoder(*audio);
  encoder.frozen = options.freeze_encoder;
  encoder.masked = config.boolean(kMaskAudioPadding, false);
  auto front_end = std::make_unique<GlmAsrFrontEnd>(std::move(encoder), decoder.hidden, token);
  return make_decoder(std::move(decoder), std::move(front_end));
}

}  // namespace convoy
