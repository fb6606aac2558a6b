#include "models/decoder_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"

namespace convoy {
namespace {

void read_rope_scaling(const ConfigReader& scaling, RopeConfig& rope) {
  const std::string type = scaling.text("rope_type", scaling.text("type", "default"));
  rope.factor = scaling.number("factor", 1);
  rope.original_max_positions = scaling.integer("original_max_position_embeddings", rope.max_positions);
  if (type == "default") {
    rope.type = RopeConfig::Type::kDefault;
  } else if (type == "linear") {
    rope.type = RopeConfig::Type::kLinear;
    rope.factor = scaling.number("factor");
  } else if (type == "dynamic") {
    rope.type = RopeConfig::Type::kDynamic;
    rope.factor = scaling.number("factor");
  } else if (type == "llama3") {
    rope.type = RopeConfig::Type::kLlama3;
    rope.factor = scaling.number("factor");
    rope.low_freq_factor = scaling.number("low_freq_factor");
    rope.high_freq_factor = scaling.number("high_freq_factor");
    rope.original_max_positions = scaling.positive("original_max_position_embeddings");
  } else if (type == "yarn") {
    rope.type = RopeConfig::Type::kYarn;
    if (!scaling.has("factor"))
      rope.factor = static_cast<double>(rope.max_positions) / static_cast<double>(rope.original_max_positions);
    rope.beta_fast = scaling.number("beta_fast", 32);
    rope.beta_slow = scaling.number("beta_slow", 1);
    rope.attention_factor = scaling.number("attention_factor", 0);
    rope.mscale = scaling.number("mscale", 0);
    rope.mscale_all_dim = scaling.number("mscale_all_dim", 0);
    rope.truncate = scaling.boolean("truncate", true);
  } else if (type == "longrope") {
    rope.type = RopeConfig::Type::kLongRope;
    rope.short_factor = scaling.numbers("short_factor");
    rope.long_factor = scaling.numbers("long_factor");
    rope.attention_factor = scaling.number("attention_factor", 0);
    if (!scaling.has("factor"))
      rope.factor = static_cast<double>(rope.max_positions) / static_cast<double>(rope.original_max_positions);
    const auto half = static_cast<std::size_t>(rope.rotary_dim / 2);
    if (rope.short_factor.size() != half || rope.long_factor.size() != half) {
      throw usage_error(fmt::format("'short_factor' and 'long_factor' should have {} numbers each", half))
          .at(scaling.where());
    }
  } else {
    throw usage_error(fmt::format("rope type '{}' is not supported", type))
        .at(scaling.where())
        .mend("supported: default, linear, dynamic, llama3, yarn, longrope");
  }
  if (rope.factor <= 0) throw usage_error("'factor' should be above 0").at(scaling.where());
}

}  // namespace

void read_rope(const ConfigReader& config, double default_fraction, double default_theta, const ModelOptions& options,
               DecoderConfig& made) {
  RopeConfig& rope = made.rope;
  const auto v5 = config.object("rope_parameters");
  const auto v4 = config.object("rope_scaling");
  const ConfigReader& keys = v5 ? *v5 : config;
  rope.theta = keys.number("rope_theta", config.number("rope_theta", default_theta));
  if (options.rope_theta > 0) rope.theta = options.rope_theta;
  const double fraction =
      keys.number("partial_rotary_factor", config.number("partial_rotary_factor", default_fraction));
  rope.rotary_dim = static_cast<std::int64_t>(static_cast<double>(made.head_dim) * fraction);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > made.head_dim) {
    throw usage_error(
        fmt::format("'partial_rotary_factor' {} gives {} rotated of {} dimensions; it should be an even number",
                    fraction, rope.rotary_dim, made.head_dim))
        .at(config.where());
  }
  rope.max_positions = made.max_positions;
  rope.original_max_positions = made.max_positions;
  if (v5) {
    read_rope_scaling(*v5, rope);
  } else if (v4) {
    read_rope_scaling(*v4, rope);
  }
}

namespace {

void read_windows(const ConfigReader& config, DecoderConfig& made) {
  made.windows.assign(static_cast<std::size_t>(made.layers), 0);
  if (config.has("layer_types")) {
    const auto types = config.texts("layer_types");
    if (types.size() != made.windows.size())
      throw usage_error("'layer_types' should name one type per layer").at(config.where());
    for (std::size_t l = 0; l < types.size(); ++l) {
      if (types[l] == "sliding_attention") {
        made.windows[l] = config.positive("sliding_window");
      } else if (types[l] != "full_attention") {
        throw usage_error(fmt::format("layer type '{}' is not supported", types[l]))
            .at(config.where())
            .mend("supported: full_attention, sliding_attention");
      }
    }
  } else if (config.boolean("use_sliding_window", false)) {
    const std::int64_t from = config.integer("max_window_layers", 28);
    for (std::int64_t l = from; l < made.layers; ++l)
      made.windows[static_cast<std::size_t>(l)] = config.positive("sliding_window", 4096);
  }
}

void read_pad(const ConfigReader& config, const ModelOptions& options, DecoderConfig& made) {
  if (!config.has("pad_token_id") || options.train_pad_row) return;
  const std::int64_t pad = config.integer("pad_token_id");
  if (pad < 0) return;
  if (pad >= made.vocab)
    throw usage_error(fmt::format("'pad_token_id' {} is outside the vocabulary of {}", pad, made.vocab))
        .at(config.where());
  made.pad_row = pad;
}

void check_heads(const ConfigReader& config, const DecoderConfig& made) {
  if (made.heads % made.kv_heads != 0) {
    throw usage_error(fmt::format("{} query heads do not divide over {} key/value heads", made.heads, made.kv_heads))
        .at(config.where());
  }
}

// Hugging Face families; the table of docs/models.md.
DecoderConfig read_huggingface(const std::string& type, const ConfigReader& config, const ModelOptions& options) {
  DecoderConfig made;
  made.family = type;
  const bool glm = type == "glm" || type == "glm4";
  made.names = glm ? DecoderConfig::Names::kFusedGateUp : DecoderConfig::Names::kSplit;
  made.vocab = config.positive("vocab_size");
  made.hidden = config.positive("hidden_size");
  made.intermediate = config.positive("intermediate_size");
  made.layers = config.positive("num_hidden_layers");
  made.heads = config.positive("num_attention_heads");
  made.kv_heads = config.positive("num_key_value_heads", made.heads);
  const std::int64_t default_dim = type == "qwen3" || glm ? 128 : made.hidden / made.heads;
  made.head_dim = config.positive("head_dim", default_dim);
  if (!config.has("head_dim") && made.hidden % made.heads != 0 && type != "qwen3" && !glm) {
    throw usage_error("'hidden_size' is not a multiple of 'num_attention_heads' and there is no 'head_dim'")
        .at(config.where());
  }
  check_heads(config, made);
  config.only("hidden_act", "silu", "Convoy's decoders use SwiGLU");
  made.norm_eps = config.number("rms_norm_eps", glm ? 1.5625e-07 : 1e-6);
  made.sandwich_norms = type == "glm4";
  const bool attention_bias = config.boolean("attention_bias", false);
  made.qkv_bias = type == "qwen2" || attention_bias;
  made.o_bias = (type == "llama" || type == "qwen3") && attention_bias;
  made.mlp_bias = type == "llama" && config.boolean("mlp_bias", false);
  made.qk_norm = type == "qwen3";
  made.tied = config.boolean("tie_word_embeddings", false);
  made.max_positions = config.positive("max_position_embeddings", type == "llama" ? 2048 : 32768);
  made.attention_dropout = config.number("attention_dropout", 0);
  made.init_std = config.number("initializer_range", 0.02);
  read_rope(config, glm ? 0.5 : 1.0, 10000, options, made);
  made.rope.pairing = glm ? RotaryPairing::kInterleaved : RotaryPairing::kHalf;
  read_windows(config, made);
  read_pad(config, options, made);
  if (type == "glm" && made.max_positions >= 131072 && made.rope.theta == 10000) {
    log_warning(
        "{}: rope_theta is 10000 for a model of {} positions; published GLM-4 conversions carry this slip. If the "
        "original "
        "was trained with another base, give --rope_theta (1e8 for the 1M model, 5e6 for the 128K one)",
        config.where(), made.max_positions);
  }
  return made;
}

DecoderConfig read_chatglm(const ConfigReader& config, const ModelOptions& options) {
  const std::string convert = "this is not a GLM-4 checkpoint; only GLM-4's ChatGLMModel is supported";
  config.only("rmsnorm", true, convert);
  config.only("post_layer_norm", true, convert);
  config.only("add_bias_linear", false, convert);
  config.only("multi_query_attention", true, convert);
  config.only("apply_residual_connection_post_layernorm", false, convert);
  config.only("fp32_residual_connection", false, convert);
  config.only("original_rope", true, convert);
  DecoderConfig made;
  made.family = "chatglm";
  made.names = DecoderConfig::Names::kChatGlm;
  made.vocab = config.positive("padded_vocab_size");
  made.hidden = config.positive("hidden_size");
  made.intermediate = config.positive("ffn_hidden_size");
  made.layers = config.has("num_layers") ? config.positive("num_layers") : config.positive("num_hidden_layers");
  made.heads = config.positive("num_attention_heads");
  made.kv_heads = config.positive("multi_query_group_num");
  made.head_dim = config.positive("kv_channels", made.hidden / made.heads);
  check_heads(config, made);
  made.norm_eps = config.number("layernorm_epsilon", 1e-5);
  made.qkv_bias = config.boolean("add_qkv_bias", false);
  made.tied = config.boolean("tie_word_embeddings", false);
  made.max_positions = config.positive("seq_length", 2048);
  made.attention_dropout = config.number("attention_dropout", 0);
  config.only("hidden_dropout", 0.0, "Convoy's decoders have no dropout on the residual stream");
  made.init_std = config.number("initializer_range", 0.02);
  made.rope.theta = options.rope_theta > 0 ? options.rope_theta : 10000 * config.number("rope_ratio", 1);
  made.rope.pairing = RotaryPairing::kInterleaved;
  made.rope.rotary_dim = made.head_dim / 2;
  made.rope.max_positions = made.rope.original_max_positions = made.max_positions;
  made.windows.assign(static_cast<std::size_t>(made.layers), 0);
  return made;
}

}  // namespace

DecoderConfig read_decoder_config(const std::string& model_type, const ConfigReader& config,
                                  const ModelOptions& options) {
  return model_type == "chatglm" ? read_chatglm(config, options) : read_huggingface(model_type, config, options);
}

}  // namespace convoy
