// Between an engine's parameters and files: Hugging Face weights and the optimizer's state, tensor by tensor.
#pragma once

#include "checkpoint/model_folder.h"
#include "checkpoint/optimizer_state.h"
#include "models/weight_map.h"
#include "train/engine.h"

namespace convoy {

// Matches the folder's tensors with the model's and reads them in. Returns how they were stored, for saving them so
// again.
WeightMap load_weights(ParameterStore& store, const ModelFolder& folder);
// Only the matching and its errors, and the dtype most of the weights are stored in.
WeightMap match_folder(const Model& model, const ModelFolder& folder);
DType stored_dtype(const WeightMap& map);

// The weights as the map says: same names, dtypes and order. Tensors carried along come from `source`.
std::vector<TensorSource> weight_sources(const ParameterStore& store, const WeightMap& map, const ModelFolder* source);

// optimizer.safetensors: master weights (where the weights are 16-bit) and moments, by Hugging Face name, float32.
std::vector<OptimizerTensor> optimizer_tensors(const Engine& engine);
FileDigest write_optimizer_state(const Engine& engine, const std::filesystem::path& file);
// Throws a data error when the state belongs to another model, optimizer or precision.
void read_optimizer_state(Engine& engine, const std::filesystem::path& checkpoint);

}  // namespace convoy
