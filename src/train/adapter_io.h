// LoRA adapters between a model's parameters and peft's files.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/model_folder.h"
#include "models/lora.h"
#include "models/weight_map.h"
#include "train/parameter_store.h"

namespace convoy {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";

// Whether the folder holds an adapter instead of a whole model.
bool is_adapter_folder(const std::filesystem::path& folder);
// adapter_config.json; throws a storage error where there is none.
Json read_adapter_json(const std::filesystem::path& folder);
LoraConfig read_adapter_config(const std::filesystem::path& folder);
// The model folder that an adapter was trained on: `given`, else what its configuration names. Throws a usage error
// without either.
std::filesystem::path base_of_adapter(const std::filesystem::path& adapter, const std::string& given);

// An adapter's folder in the place of a model's stands for its base model with that adapter.
struct ModelAndAdapter {
  std::string model, adapter;  // folders; the adapter may be empty
};
ModelAndAdapter resolve_adapter(const std::string& model, const std::string& adapter);

// How an adapter's file holds the weights that a model with adapters trains: adapters, and modules_to_save (a tied
// embedding under both of its names).
WeightMap adapter_map(const Model& model, DType dtype);
// Draws the adapters of a new run; what they stand beside stays as it is.
void draw_adapters(ParameterStore& store);
// Throws a data error that lists missing and unexpected tensors and wrong shapes.
void load_adapter(ParameterStore& store, const std::filesystem::path& folder);

// The tensors of `base` with an adapter's changes added, W + scale·B·A in float32, in their stored types;
// modules_to_save replaced. `adapted` is the base's model with the adapter; all three must outlive the result.
std::vector<TensorSource> merged_sources(const ModelFolder& base, const Model& adapted, const ModelFolder& adapter);

}  // namespace convoy
