#include "train/run_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/log.h"
#include "train/adapter_io.h"

namespace convoy {

std::uint64_t expected_bytes(const CheckpointContent& content) {
  std::uint64_t bytes = 64 << 20;
  for (const StoredBinding& binding : content.weights.bindings) bytes += binding.stored.spec.bytes();
  if (!content.model_only) {
    const auto ranks = static_cast<std::uint64_t>(std::max(1, content.engine.shape().zero.world));
    const bool sharded = content.engine.shape().zero.shards_state();
    bytes += OptimizerStateWriter::file_size(optimizer_tensors(content.engine)) * (sharded ? ranks : 1);
  }
  return bytes;
}

std::vector<FileDigest> write_trained(const std::filesystem::path& folder, const ModelSource& source,
                                      const std::vector<TensorSource>& tensors,
                                      const std::filesystem::path& carry_from) {
  ModelFolderOptions options;
  options.carry_from = carry_from;
  options.adapter = source.adapter != nullptr;
  return write_model_folder(folder, options.adapter ? *source.adapter : *source.config, tensors, options);
}

void load_trained(ParameterStore& store, const std::filesystem::path& folder) {
  if (!lora_adapters(store.model()).empty()) {
    load_adapter(store, folder);
    return;
  }
  const ModelFolder model(folder);
  load_weights(store, model);
}

WeightMap start_weights(ParameterStore& store, const ModelSource& source, const TrainShape& shape) {
  WeightMap weights = canonical_weights(*source.model, source.stored);
  if (source.folder) {
    weights = load_weights(store, *source.folder);
  } else {
    store.initialize(shape.seed);
  }
  if (source.adapter == nullptr) return weights;
  if (source.adapter_from.empty()) {
    draw_adapters(store);
  } else {
    load_adapter(store, source.adapter_from);
  }
  // As exact as they are kept.
  return adapter_map(*source.model, shape.has_master() ? DType::kF32 : shape.dtype);
}

void save_model(const std::filesystem::path& folder, const Engine& engine, const ModelSource& source,
                const WeightMap& weights, const std::filesystem::path& carry_from, Communicator* communicator) {
  const bool first = communicator == nullptr || communicator->rank() == 0;
  const std::vector<TensorSource> tensors =
      snapshot_weights(engine.store(), weights, source.folder.get(), communicator, first);
  if (!first) return;
  write_trained(folder, source, tensors, carry_from);
}

void load_checkpoint(Engine& engine, const std::filesystem::path& folder) {
  load_trained(engine.store(), folder);
  if (optimizer_files(folder).empty()) {
    throw data_error("the checkpoint holds no optimizer state (it was saved with save_only_model)")
        .at(folder.string())
        .mend("start a new run from its weights with --model");
  }
  read_optimizer_state(engine, folder);
}

std::string share_text(Communicator& communicator, const std::string& text) {
  if (communicator.size() == 1) return text;
  std::array<char, 4096> shared{};
  check(text.size() < shared.size(), "a path is longer than 4095 bytes");
  std::copy(text.begin(), text.end(), shared.begin());
  communicator.broadcast(std::as_writable_bytes(std::span(shared)), 0);
  return shared.data();
}

namespace {

std::filesystem::path choose_checkpoint(const std::string& resume, CheckpointStore& store) {
  if (resume != "true" && resume != "latest") {
    if (!std::filesystem::is_directory(resume))
      throw usage_error(fmt::format("no checkpoint folder {}", resume)).mend("see: convoy checkpoint list");
    const std::vector<std::string> problems = CheckpointStore::verify(resume);
    if (problems.empty()) return resume;
    Error error = storage_error(fmt::format("the checkpoint is damaged: {}", problems.front())).at(resume);
    throw error.mend("resume from another one; see: convoy checkpoint verify");
  }
  const auto newest = store.newest_whole();
  if (newest) return newest->folder;
  throw usage_error(fmt::format("No valid checkpoint found in output directory ({})", store.output_dir().string()))
      .mend("start without --resume_from_checkpoint");
}

}  // namespace

std::filesystem::path find_checkpoint(const std::string& resume, CheckpointStore& store, Communicator& communicator) {
  return share_text(communicator, communicator.rank() == 0 ? choose_checkpoint(resume, store).string() : "");
}

}  // namespace convoy
