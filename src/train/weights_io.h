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

// The weights as the map says, copied now: same names, dtypes and order. Tensors carried along come from `source`.
// All ranks must call where the weights are sharded; those that do not `keep` them get nothing.
std::vector<TensorSource> snapshot_weights(const ParameterStore& store, const WeightMap& map, const ModelFolder* source,
                                           Communicator* communicator = nullptr, bool keep = true);

// What this rank holds of the optimizer's tensors (master weights where the weights are 16-bit, and moments, by Hugging
// Face name), and a copy of it.
std::vector<OptimizerTensor> optimizer_tensors(const Engine& engine);
struct OptimizerSnapshot {
  std::vector<OptimizerTensor> tensors;
  std::vector<std::vector<std::byte>> values;
};
OptimizerSnapshot snapshot_optimizer(const Engine& engine);
// "optimizer.safetensors", or this rank's file of several.
std::string optimizer_file(const Engine& engine);
FileDigest write_optimizer_state(const std::filesystem::path& file, const OptimizerSnapshot& snapshot);
// Throws a data error when the state belongs to another model, optimizer or precision.
void read_optimizer_state(Engine& engine, const std::filesystem::path& checkpoint);

}  // namespace convoy
