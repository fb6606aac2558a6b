// GLM-4's original checkpoint layout: the golden GLM model renamed and fused as ChatGLMModel gives the same numbers.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/model_folder.h"
#include "cpu/cpu_device.h"
#include "golden_batch.h"
#include "support/graph_runner.h"
#include "train/weights_io.h"

namespace convoy {
namespace {

using Bytes = std::vector<std::byte>;

Json chatglm_config(const Json& glm) {
  return {{"model_type", "chatglm"},
          {"architectures", Json::array({"ChatGLMModel"})},
          {"hidden_size", glm["hidden_size"]},
          {"ffn_hidden_size", glm["intermediate_size"]},
          {"num_layers", glm["num_hidden_layers"]},
          {"num_attention_heads", glm["num_attention_heads"]},
          {"kv_channels", glm["head_dim"]},
          {"multi_query_attention", true},
          {"multi_query_group_num", glm["num_key_value_heads"]},
          {"rope_ratio", glm["rope_parameters"]["rope_theta"].get<double>() / 10000},
          {"original_rope", true},
          {"seq_length", glm["max_position_embeddings"]},
          {"padded_vocab_size", glm["vocab_size"]},
          {"layernorm_epsilon", glm["rms_norm_eps"]},
          {"rmsnorm", true},
          {"post_layer_norm", true},
          {"add_qkv_bias", true},
          {"add_bias_linear", false},
          {"tie_word_embeddings", false},
          {"a_key_convoy_does_not_use", 7}};
}

// The ChatGLM name of a GLM tensor and where its rows go, by the table of the two layouts.
struct Place {
  std::string name;
  int part;  // 0 = the whole, 1, 2, 3 = q, k, v
};

Place place_of(const std::string& glm) {
  if (glm == "model.embed_tokens.weight") return {"transformer.embedding.word_embeddings.weight", 0};
  if (glm == "model.norm.weight") return {"transformer.encoder.final_layernorm.weight", 0};
  if (glm == "lm_head.weight") return {"transformer.output_layer.weight", 0};
  std::string name = "transformer.encoder." + glm.substr(std::strlen("model."));
  const auto swap = [&](const std::string& from, const std::string& to) {
    const std::size_t at = name.find(from);
    if (at == std::string::npos) return false;
    name.replace(at, from.size(), to);
    return true;
  };
  if (swap("self_attn.q_proj", "self_attention.query_key_value")) return {name, 1};
  if (swap("self_attn.k_proj", "self_attention.query_key_value")) return {name, 2};
  if (swap("self_attn.v_proj", "self_attention.query_key_value")) return {name, 3};
  swap("self_attn.o_proj", "self_attention.dense");
  swap("mlp.gate_up_proj", "mlp.dense_h_to_4h");
  swap("mlp.down_proj", "mlp.dense_4h_to_h");
  return {name, 0};
}

std::filesystem::path write_chatglm(const ModelFolder& glm) {
  std::map<std::string, std::map<int, Bytes>> parts;
  std::map<std::string, std::int64_t> rows, width;
  for (const std::string& name : glm.names()) {
    const auto tensor = glm.tensor(name);
    const Place place = place_of(name);
    parts[place.name][place.part] = Bytes(tensor.bytes.begin(), tensor.bytes.end());
    rows[place.name] += tensor.info->spec.shape[0];
    width[place.name] = tensor.info->spec.shape.rank() == 2 ? tensor.info->spec.shape[1] : 0;
  }
  std::vector<TensorSource> sources;
  for (const auto& [name, pieces] : parts) {
    const Shape shape = width[name] > 0 ? Shape{rows[name], width[name]} : Shape{rows[name]};
    sources.push_back({name, {DType::kF32, shape}, [pieces](const ByteSink& sink) {
                         for (const auto& [part, bytes] : pieces) sink(bytes);
                       }});
  }
  // The decoy: frequencies without the rope ratio, which no forward pass reads.
  sources.push_back({"transformer.rotary_pos_emb.inv_freq", {DType::kF32, {4}}, [](const ByteSink& sink) {
                       sink(Bytes(16, std::byte{1}));
                     }});
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "convoy-chatglm-test";
  write_model_folder(folder, chatglm_config(glm.config()), sources);
  return folder;
}

TEST(ChatGlm, TheOriginalLayoutGivesTheSameNumbersAndIsWrittenBack) {
  const Json expected = read_json(golden("glm") / "golden.json");
  const SafetensorsFile io(golden("glm") / "io.safetensors");
  const ModelFolder glm(golden("glm") / "model");
  const std::filesystem::path path = write_chatglm(glm);
  const ModelFolder folder(path);
  const auto model = make_model(folder.config(), "config.json");
  EXPECT_EQ(model->family(), "chatglm");
  EXPECT_EQ(model->parameter_count(), expected["params"].get<std::int64_t>());
  const GoldenBatch batch = read_batch(io);
  CpuDevice device;
  Engine engine(device, *model, shape_for(batch, expected["optimizer"], DType::kF32));
  const WeightMap map = load_weights(engine.store(), folder);
  for (int step = 0; step < 3; ++step) {
    const LossTotals totals = engine.micro_step(batch.view(), 1.0 / static_cast<double>(batch.target_count));
    const double loss = expected["losses"][static_cast<std::size_t>(step)];
    EXPECT_NEAR(totals.mean(), loss, (step == 0 ? 1e-5 : 1e-4) * loss);
    if (step == 0) {
      for (const FileTensor& tensor : model->file_tensors()) {
        std::map<int, std::vector<double>> pieces;
        for (const std::string& name : glm.names()) {
          if (place_of(name).name == tensor.name) pieces[place_of(name).part] = floats(io, "grad." + name);
        }
        std::vector<double> reference;
        for (const auto& [part, values] : pieces) reference.insert(reference.end(), values.begin(), values.end());
        EXPECT_LT(relative_distance(file_gradient(engine, tensor), reference), 1e-4) << tensor.name;
      }
    }
    engine.update(expected["optimizer"]["lr"], step + 1);
  }
  // Saved in the layout that was loaded: same names and order, the buffer as it was, the unknown key kept.
  const std::filesystem::path saved = path.string() + "-saved";
  write_model_folder(saved, folder.config(), snapshot_weights(engine.store(), map, &folder));
  const ModelFolder back(saved);
  EXPECT_EQ(back.names(), folder.names());
  const auto before = folder.tensor("transformer.rotary_pos_emb.inv_freq").bytes;
  const auto after = back.tensor("transformer.rotary_pos_emb.inv_freq").bytes;
  EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin(), after.end()));
  EXPECT_EQ(back.config()["a_key_convoy_does_not_use"], 7);
  std::filesystem::remove_all(path);
  std::filesystem::remove_all(saved);
}

TEST(ChatGlm, OtherChatGlmModelsAreRefusedByKey) {
  const ModelFolder glm(golden("glm") / "model");
  for (const auto& [key, value] : std::map<std::string, Json>{{"multi_query_attention", false},
                                                              {"rmsnorm", false},
                                                              {"add_bias_linear", true},
                                                              {"post_layer_norm", false}}) {
    Json config = chatglm_config(glm.config());
    config[key] = value;
    try {
      make_model(config, "config.json");
      FAIL() << key;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::kUsage);
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace convoy
