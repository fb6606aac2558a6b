// The switches of the one decoder description that covers Llama, Qwen2, Qwen3, GLM, GLM-4-0414 and ChatGLM.
#pragma once

#include <string>
#include <vector>

#include "models/config_reader.h"
#include "models/model.h"
#include "models/rope.h"

namespace convoy {

struct DecoderConfig {
  // How files name and cut the tensors.
  enum class Names : std::uint8_t {
    kSplit,        // q_proj, k_proj, v_proj, gate_proj, up_proj (Llama, Qwen)
    kFusedGateUp,  // gate_up_proj in one (GLM, GLM-4-0414)
    kChatGlm,      // query_key_value and dense_h_to_4h in one, ChatGLMModel's names
  };
  std::string family;
  std::string outer;  // before all names, where the decoder is a part of a model ("language_model.")
  Names names = Names::kSplit;
  std::int64_t vocab = 0, hidden = 0, intermediate = 0, layers = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double norm_eps = 1e-6;
  bool sandwich_norms = false;  // norms on both branch outputs (GLM-4-0414)
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;
  bool tied = false;
  std::int64_t pad_row = -1;
  std::vector<std::int64_t> windows;  // by layer; 0 = full attention
  RopeConfig rope;
  double attention_dropout = 0;
  double init_std = 0.02;
  std::int64_t max_positions = 0;
};

// Reads config.json of one of the families; throws usage errors that name the key.
DecoderConfig read_decoder_config(const std::string& model_type, const ConfigReader& config,
                                  const ModelOptions& options);

// The rotary part of a configuration, into made.rope. Needs made.head_dim and made.max_positions.
void read_rope(const ConfigReader& config, double default_fraction, double default_theta, const ModelOptions& options,
               DecoderConfig& made);

class FrontEnd;
// `front_end` may be null: a decoder of text alone.
std::unique_ptr<Model> make_decoder(DecoderConfig config, std::unique_ptr<FrontEnd> front_end);

}  // namespace convoy
