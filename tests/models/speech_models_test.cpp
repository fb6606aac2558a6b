// Sizes, names and frozen parts of the models that hear.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "golden_batch.h"
#include "models/weight_map.h"

namespace convoy {
namespace {

Json whisper(std::int64_t width, std::int64_t layers, std::int64_t heads, std::int64_t bins, std::int64_t vocab) {
  return {{"model_type", "whisper"},      {"vocab_size", vocab},      {"d_model", width},
          {"num_mel_bins", bins},         {"encoder_layers", layers}, {"encoder_attention_heads", heads},
          {"encoder_ffn_dim", 4 * width}, {"decoder_layers", layers}, {"decoder_attention_heads", heads},
          {"decoder_ffn_dim", 4 * width}};
}

Json glm_asr() {
  return {{"model_type", "glmasr"},
          {"audio_config", {{"model_type", "glmasr_encoder"}}},
          {"text_config",
           {{"model_type", "llama"},
            {"vocab_size", 59264},
            {"hidden_size", 2048},
            {"intermediate_size", 6144},
            {"num_hidden_layers", 28},
            {"num_attention_heads", 16},
            {"num_key_value_heads", 4},
            {"head_dim", 128}}}};
}

TEST(SpeechModels, HaveThePublishedNumbersOfParameters) {
  EXPECT_EQ(make_model(whisper(384, 4, 6, 80, 51865), "tiny")->parameter_count(), 37760640);
  EXPECT_EQ(make_model(whisper(1280, 32, 20, 128, 51866), "large-v3")->parameter_count(), 1543490560);
  EXPECT_EQ(make_model(glm_asr(), "nano")->parameter_count(), 2136470528);
}

TEST(SpeechModels, AFrozenEncoderTrainsNothingBeforeTheText) {
  ModelOptions options;
  options.freeze_encoder = true;
  for (const Json& config : {whisper(32, 2, 4, 8, 97), read_json(golden("glmasr") / "model/config.json")}) {
    const auto model = make_model(config, "test", options);
    std::int64_t frozen = 0;
    for (const Parameter& parameter : model->parameters()) {
      const bool encoder = parameter.name.starts_with("model.encoder.") || parameter.name.starts_with("audio_tower.");
      EXPECT_EQ(parameter.trainable, !encoder) << parameter.name;
      frozen += encoder;
    }
    EXPECT_GT(frozen, 0);
  }
}

TEST(SpeechModels, GlmAsrTakesTheNamesOfFilesAndOfMemoryAndWritesThePublishedOnes) {
  const auto model = make_model(read_json(golden("glmasr") / "model/config.json"), "test");
  std::vector<StoredTensor> in_memory;
  for (const FileTensor& tensor : model->file_tensors()) {
    std::string name = tensor.name;
    const std::string text = "language_model.model.";
    name = name.starts_with(text) ? "model.language_model." + name.substr(text.size()) : "model." + name;
    in_memory.push_back({name, {DType::kF32, tensor.shape}});
  }
  EXPECT_EQ(match_weights(*model, in_memory, "in memory").bindings.size(), in_memory.size());
  const WeightMap written = canonical_weights(*model, DType::kF32);
  int tied = 0;
  for (const StoredBinding& binding : written.bindings) {
    tied += binding.stored.name == "language_model.lm_head.weight";
    tied += binding.stored.name == "language_model.model.embed_tokens.weight";
  }
  EXPECT_EQ(tied, 2) << "readers expect both copies of the tied table";
}

TEST(SpeechModels, WhispersPositionsStartAsSinusoids) {
  const auto model = make_model(whisper(32, 1, 4, 8, 97), "test");
  for (std::size_t p = 0; p < model->parameters().size(); ++p) {
    const Parameter& parameter = model->parameters()[p];
    if (parameter.name != "model.encoder.embed_positions.weight") continue;
    std::vector<float> values(static_cast<std::size_t>(parameter.shape.numel()));
    initialize(parameter, p, 1, values);
    EXPECT_FALSE(parameter.trainable);
    EXPECT_NEAR(values[32], std::sin(1.0), 1e-6);
    EXPECT_NEAR(values[32 + 16], std::cos(1.0), 1e-6);
    EXPECT_NEAR(values[2 * 32 + 15], std::sin(2e-4), 1e-7);
  }
}

}  // namespace
}  // namespace convoy
