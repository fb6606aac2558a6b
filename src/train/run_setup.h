// From the settings of a run to a model, its programs' shape and its files.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "checkpoint/model_folder.h"
#include "config/run_config.h"
#include "models/model.h"
#include "plan/memory_report.h"
#include "plan/program_set.h"
#include "train/run_task.h"

namespace convoy {

// The model that a run trains and where it comes from.
struct ModelSource {
  std::unique_ptr<Json> config;         // config.json, to be written beside the weights as it is
  std::string where;                    // its file, for errors
  std::unique_ptr<ModelFolder> folder;  // the weights; none when training from scratch
  std::unique_ptr<Model> model;
  DType dtype = DType::kF32;   // of the weights that the forward pass reads
  DType stored = DType::kF32;  // of the weights in files
  // With LoRA: adapter_config.json, and the adapter to start from (empty: a new one).
  std::unique_ptr<Json> adapter;
  std::filesystem::path adapter_from;
  TaskSetup task;  // what of it a task has added
};

// Reads config.json, and of the weights only their headers. Throws usage and data errors. Without `training`, the dtype
// may be any that weights are stored in.
ModelSource open_model(const RunConfig& config, bool training = true);

// Tokens of a row: seq_length, or what the model takes, at most 1024.
std::int64_t sequence_length(const RunConfig& config, const Model& model);

TrainShape train_shape(const RunConfig& config, const ModelSource& source, bool evaluates, int rank, int ranks);
// Of evaluation alone. Its loss is the plain one: no label smoothing, no z-loss.
TrainShape evaluation_shape(const RunConfig& config, const ModelSource& source, int rank, int ranks);

// The folder or file of the tokenizer: `tokenizer`, else the model folder. Throws a usage error without either.
std::filesystem::path tokenizer_path(const RunConfig& config);

// Bytes that one rank may take: memory_limit, or its share of what the device has; and its share of the host's memory
// where the device has its own.
MemoryLimit memory_limit(const RunConfig& config, int ranks, const Device& device);
// What the communicator of one of `ranks` ranks of a host takes.
std::size_t communication_memory(int ranks);

// Threads, log level and the configuration's warnings and notes, for one rank's process.
void apply_process_settings(const RunConfig& config, int rank, int ranks);

}  // namespace convoy
