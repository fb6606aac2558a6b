#include "train/tiny_model.h"

#include <nlohmann/json.hpp>

#include "base/random.h"

namespace convoy::testing {

std::vector<std::string> tiny_families() {
  return {"llama", "qwen2", "qwen3", "glm", "glm4", "chatglm", "gpt2", "openai-gpt", "whisper", "glmasr"};
}

std::vector<std::string> tiny_text_families() {
  std::vector<std::string> families = tiny_families();
  std::erase_if(families, [](const std::string& family) { return family == "whisper" || family == "glmasr"; });
  return families;
}

Json tiny_config(const std::string& family) {
  if (family == "gpt2" || family == "openai-gpt") {
    return {{"model_type", family}, {"vocab_size", 97}, {"n_embd", 32},
            {"n_layer", 2},         {"n_head", 4},      {"n_positions", 64}};
  }
  if (family == "whisper") {
    return {{"model_type", "whisper"},   {"vocab_size", 97},    {"d_model", 32},
            {"num_mel_bins", kMelBins},  {"encoder_layers", 2}, {"encoder_attention_heads", 4},
            {"encoder_ffn_dim", 48},     {"decoder_layers", 2}, {"decoder_attention_heads", 4},
            {"decoder_ffn_dim", 48},     {"pad_token_id", 0},   {"max_source_positions", kAudioFrames / 2},
            {"max_target_positions", 64}};
  }
  if (family == "glmasr") {
    Json text = tiny_config("llama");
    return {{"model_type", "glmasr"},
            {"text_config", text},
            {"audio_token_id", 96},
            {"audio_config",
             {{"hidden_size", 32},
              {"intermediate_size", 48},
              {"num_hidden_layers", 2},
              {"num_attention_heads", 4},
              {"num_mel_bins", kMelBins},
              {"max_position_embeddings", kAudioFrames / 2}}}};
  }
  if (family == "chatglm") {
    return {{"model_type", "chatglm"},       {"padded_vocab_size", 97}, {"hidden_size", 32},
            {"ffn_hidden_size", 48},         {"num_layers", 2},         {"num_attention_heads", 4},
            {"multi_query_group_num", 2},    {"kv_channels", 8},        {"add_qkv_bias", true},
            {"multi_query_attention", true}, {"rope_ratio", 500},       {"seq_length", 64}};
  }
  return {{"model_type", family},
          {"vocab_size", 97},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"max_position_embeddings", 64},
          {"pad_token_id", 0},
          {"tie_word_embeddings", family == "qwen2" || family == "qwen3"}};
}

void set_audio(const std::string& family, TrainShape& shape) {
  if (!make_model(tiny_config(family), "test")->audio()) return;
  shape.audio_windows = kAudioWindows;
  shape.audio_frames = kAudioFrames;
}

RandomBatch random_batch(std::int64_t rows, std::int64_t seq, std::int64_t vocab, std::int64_t first_row) {
  RandomBatch batch;
  for (std::int64_t r = 0; r < rows; ++r) {
    RandomStream random(77, static_cast<std::uint64_t>(first_row + r));
    std::int32_t start = 0;
    std::int32_t end = 0;
    for (std::int32_t t = 0; t < seq; ++t) {
      if (t == end) {
        start = t;
        end = t + 1 + static_cast<std::int32_t>(random.below(12));
      }
      batch.ids.push_back(static_cast<std::int32_t>(1 + random.below(static_cast<std::uint64_t>(vocab - 1))));
      const auto target = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocab)));
      const bool has_target = t + 1 < end && random.below(5) != 0;
      batch.targets.push_back(has_target ? target : -1);
      batch.target_count += has_target;
      batch.positions.push_back(t - start);
      batch.seq_start.push_back(static_cast<std::int32_t>(r * seq) + start);
      batch.keys.push_back(static_cast<std::uint64_t>((first_row + r) * 1000003 + t));
      // Two rows of audio in the middle of the text.
      const std::int32_t place = t - static_cast<std::int32_t>(seq / 2);
      batch.audio_rows.push_back(place >= 0 && place < 2 ? static_cast<std::int32_t>(2 * r) + place : -1);
    }
    for (std::uint64_t alternative = 0; alternative < 2; ++alternative) {
      const auto half = static_cast<std::uint64_t>(seq / 2);
      batch.head_rows.push_back(
          static_cast<std::int32_t>(r * seq + static_cast<std::int64_t>(alternative * half + random.below(half))));
      batch.head_keys.push_back(static_cast<std::uint64_t>(first_row + r) + 1);
    }
    batch.head_labels.push_back(static_cast<std::int32_t>(random.below(2)));
    for (std::int64_t i = 0; i < kAudioWindows * kAudioFrames * kMelBins; ++i)
      batch.features.push_back(2 * static_cast<float>(random.uniform()) - 1);
  }
  return batch;
}

void sharpen(ParameterStore& store) {
  store.initialize(11);
  const std::vector<Parameter>& parameters = store.model().parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].init_std == 0) continue;
    std::vector<float> values(static_cast<std::size_t>(parameters[p].shape.numel()));
    initialize(parameters[p], p, 11, values);
    for (float& value : values) value *= 8;
    store.set_rows(p, 0, DType::kF32, std::as_bytes(std::span(values)));
  }
}

}  // namespace convoy::testing
