// Names, prefixes, ties and buffers of model files; fresh weights.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/model_folder.h"
#include "golden_batch.h"
#include "models/weight_map.h"

namespace convoy {
namespace {

std::vector<StoredTensor> stored_of(const Model& model) {
  std::vector<StoredTensor> stored;
  for (const FileTensor& tensor : model.file_tensors()) stored.push_back({tensor.name, {DType::kF32, tensor.shape}});
  return stored;
}

std::unique_ptr<Model> golden_model(const std::string& name) {
  return make_model(read_json(golden(name) / "model/config.json"), name);
}

TEST(WeightMap, TakesNamesWithAndWithoutTheBasePrefix) {
  for (const char* name : {"gpt2", "llama", "qwen3", "glm"}) {
    const auto model = golden_model(name);
    std::vector<StoredTensor> stored = stored_of(*model);
    const std::string prefix = model->base_prefix();
    for (StoredTensor& tensor : stored) {
      if (tensor.name.starts_with(prefix)) tensor.name = tensor.name.substr(prefix.size());
    }
    const WeightMap map = match_weights(*model, stored, name);
    EXPECT_EQ(map.bindings.size(), stored.size());
    EXPECT_EQ(map.bindings[0].stored.name, stored[0].name) << "saved under the name it was loaded with";
  }
}

TEST(WeightMap, ATiedModelMayStoreEitherNameOrBoth) {
  const auto model = golden_model("qwen2");
  std::vector<StoredTensor> stored = stored_of(*model);
  stored[0].name = model->tied_head();
  EXPECT_NO_THROW(match_weights(*model, stored, "head only"));
  stored.push_back({model->tied_embedding(), stored[0].spec});
  const WeightMap both = match_weights(*model, stored, "both");
  EXPECT_EQ(both.must_be_equal.size(), 1u);
  EXPECT_EQ(both.bindings.size(), stored.size());
}

TEST(WeightMap, BuffersAreCarriedAndStrangersRefused) {
  const auto model = golden_model("gpt2");
  std::vector<StoredTensor> stored = stored_of(*model);
  stored.push_back({"h.0.attn.bias", {DType::kU8, {1, 1, 32, 32}}});
  const WeightMap map = match_weights(*model, stored, "gpt2");
  EXPECT_TRUE(map.bindings.back().carried);
  stored.push_back({"transformer.h.9.ln_1.weight", {DType::kF32, {32}}});
  stored.erase(stored.begin());
  try {
    match_weights(*model, stored, "gpt2");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("lack 1 tensors: transformer.wte.weight"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("transformer.h.9.ln_1.weight"), std::string::npos) << error.what();
  }
}

// The law of fresh weights, by their statistics: normal with the family's deviation, constants, zeros in the pad row.
TEST(Initialize, FollowsTheLawOfTheFamily) {
  const Json config = {{"model_type", "gpt2"}, {"vocab_size", 500}, {"n_embd", 64}, {"n_layer", 8}, {"n_head", 4}};
  const auto model = make_model(config, "test");
  for (std::size_t p = 0; p < model->parameters().size(); ++p) {
    const Parameter& parameter = model->parameters()[p];
    std::vector<float> values(static_cast<std::size_t>(parameter.shape.numel()));
    initialize(parameter, p, 7, values);
    double squares = 0;
    for (float v : values) squares += static_cast<double>(v) * v;
    const double deviation = std::sqrt(squares / static_cast<double>(values.size()));
    if (parameter.name.ends_with("c_proj.weight")) {
      EXPECT_NEAR(deviation, 0.02 / 4, 4e-4) << parameter.name;  // 0.02 / √(2·8)
    } else if (parameter.name.find(".ln_") != std::string::npos && parameter.name.ends_with("weight")) {
      EXPECT_EQ(deviation, 1) << parameter.name;
    } else if (parameter.name.ends_with(".bias")) {
      EXPECT_EQ(deviation, 0) << parameter.name;
    } else {
      EXPECT_NEAR(deviation, 0.02, 6e-4) << parameter.name;
    }
  }
  const auto llama = golden_model("llama");  // pad_token_id 0
  std::vector<float> table(static_cast<std::size_t>(llama->parameters()[0].shape.numel()));
  initialize(llama->parameters()[0], 0, 7, table);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(table[i], 0);
  EXPECT_NE(table[32], 0);
}

TEST(Parameters, CountsOfPublishedModels) {
  const auto count = [](const Json& config) { return make_model(config, "test")->parameter_count(); };
  EXPECT_EQ(count({{"model_type", "qwen2"},
                   {"vocab_size", 151936},
                   {"hidden_size", 896},
                   {"intermediate_size", 4864},
                   {"num_hidden_layers", 24},
                   {"num_attention_heads", 14},
                   {"num_key_value_heads", 2},
                   {"tie_word_embeddings", true}}),
            494032768);
  EXPECT_EQ(count({{"model_type", "qwen3"},
                   {"vocab_size", 151936},
                   {"hidden_size", 1024},
                   {"intermediate_size", 3072},
                   {"num_hidden_layers", 28},
                   {"num_attention_heads", 16},
                   {"num_key_value_heads", 8},
                   {"head_dim", 128},
                   {"tie_word_embeddings", true}}),
            596049920);
  EXPECT_EQ(count({{"model_type", "llama"},
                   {"vocab_size", 128256},
                   {"hidden_size", 4096},
                   {"intermediate_size", 14336},
                   {"num_hidden_layers", 32},
                   {"num_attention_heads", 32},
                   {"num_key_value_heads", 8}}),
            8030261248);
  EXPECT_EQ(count({{"model_type", "chatglm"},
                   {"padded_vocab_size", 151552},
                   {"hidden_size", 4096},
                   {"ffn_hidden_size", 13696},
                   {"num_layers", 40},
                   {"num_attention_heads", 32},
                   {"kv_channels", 128},
                   {"multi_query_group_num", 4},
                   {"add_qkv_bias", true},
                   {"seq_length", 1048576},
                   {"rope_ratio", 10000}}),
            9483857920);
  EXPECT_EQ(count({{"model_type", "gpt2"}, {"vocab_size", 50257}, {"n_embd", 768}, {"n_layer", 12}, {"n_head", 12}}),
            124439808);
}

}  // namespace
}  // namespace convoy
