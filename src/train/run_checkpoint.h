// What a checkpoint of a training run holds: the model as a Hugging Face folder, the optimizer's state, and where the
// run stands.
#pragma once

#include "checkpoint/checkpoint_store.h"
#include "checkpoint/train_state.h"
#include "train/run_setup.h"
#include "train/weights_io.h"

namespace convoy {

struct CheckpointContent {
  const Engine& engine;
  const ModelSource& source;
  const WeightMap& weights;
  std::filesystem::path carry_from;  // whose tokenizer and other files go along
  TrainingState state;
  std::string trainer_state;  // the text of trainer_state.json
  bool model_only = false;    // save_only_model
};

// Room that the checkpoint will take on the disk: weights, all ranks' optimizer tensors, and some for the rest.
std::uint64_t expected_bytes(const CheckpointContent& content);

// Writes what a run trains: the whole model as a Hugging Face folder, or its adapters as peft's.
std::vector<FileDigest> write_trained(const std::filesystem::path& folder, const ModelSource& source,
                                      const std::vector<TensorSource>& tensors,
                                      const std::filesystem::path& carry_from);
// Reads it back.
void load_trained(ParameterStore& store, const std::filesystem::path& folder);
// The weights that a run starts from, and how what it trains is written.
WeightMap start_weights(ParameterStore& store, const ModelSource& source, const TrainShape& shape);

// Writes the model as a Hugging Face folder (at the end of a run). All ranks must call; the first one writes.
void save_model(const std::filesystem::path& folder, const Engine& engine, const ModelSource& source,
                const WeightMap& weights, const std::filesystem::path& carry_from, Communicator* communicator);

// Weights and optimizer state of a checkpoint into the engine.
void load_checkpoint(Engine& engine, const std::filesystem::path& folder);

// The checkpoint that `resume` names: a folder, or "true" / "latest" for the newest whole one in output_dir. Throws
// when there is none; damaged ones that were passed over are logged.
// The first rank chooses; all must call.
std::filesystem::path find_checkpoint(const std::string& resume, CheckpointStore& store, Communicator& communicator);
// The text that the first rank gives, on every rank; at most 4095 bytes.
std::string share_text(Communicator& communicator, const std::string& text);

}  // namespace convoy
