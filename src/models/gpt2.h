// GPT-2 (Radford et al., 2019) and GPT-1 (Radford et al., 2018): learned positions, LayerNorm, weights stored [in,
// out].
#pragma once

#include "models/config_reader.h"
#include "models/model.h"

namespace convoy {

struct Gpt2Config {
  std::int64_t vocab = 0, positions = 0, hidden = 0, layers = 0, heads = 0, intermediate = 0;
  double norm_eps = 1e-5;
  double embedding_dropout = 0.1, attention_dropout = 0.1, residual_dropout = 0.1;
  bool scale_weights = true;    // divide scores by √D
  bool scale_by_layer = false;  // and by the layer's number
  bool gelu_tanh = true;
  bool tied = true;
  double init_std = 0.02;
  // GPT-1: each branch is added first and the sum normalised, x = LN(x + branch(x)); no norm at the end.
  bool post_norm = false;
};

Gpt2Config read_gpt2_config(const ConfigReader& config);
// config.json of model_type openai-gpt.
Gpt2Config read_gpt1_config(const ConfigReader& config);
std::unique_ptr<Model> make_gpt2(Gpt2Config config);

}  // namespace convoy
