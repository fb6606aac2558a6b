// convoy export CHECKPOINT --output FOLDER: a plain Hugging Face folder of a checkpoint, tensor by tensor.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/checkpoint_store.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/optimizer_state.h"
#include "cli/commands.h"
#include "models/lora.h"
#include "train/adapter_io.h"
#include "train/parameter_store.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// A folder with checkpoints stands for its newest whole one.
fs::path checkpoint_folder(const std::string& given) {
  if (!fs::is_directory(given))
    throw usage_error(fmt::format("there is no folder {}", given))
        .mend("give a checkpoint, or the output_dir of a run");
  if (fs::exists(fs::path(given) / CheckpointManifest::kFileName) || is_adapter_folder(given)) return given;
  CheckpointStore store(given);
  if (const auto newest = store.newest_whole()) return newest->folder;
  throw usage_error(fmt::format("{} is no checkpoint and holds none", given)).mend("see: convoy checkpoint list");
}

// Hands a tensor out in pieces, in another element type.
void convert(const ByteSink& sink, DType from, std::span<const std::byte> bytes, DType to) {
  if (from == to) return sink(bytes);
  const std::size_t count = bytes.size() / size_of(from);
  const std::size_t most = kFileBlock / size_of(to);
  std::vector<std::byte> piece;
  for (std::size_t at = 0; at < count; at += most) {
    const std::size_t length = std::min(most, count - at);
    piece.resize(length * size_of(to));
    for (std::size_t i = 0; i < length; ++i)
      store_float(to, load_float(from, bytes.data() + (at + i) * size_of(from)), piece.data() + i * size_of(to));
    sink(piece);
  }
}

void from_master(const ByteSink& sink, const OptimizerStateReader& state, const std::string& name, DType to) {
  const std::uint64_t count = static_cast<std::uint64_t>(state.spec(name).numel());
  std::vector<float> values;
  for (std::uint64_t at = 0; at < count; at += kFileBlock / sizeof(float)) {
    values.resize(std::min<std::uint64_t>(kFileBlock / sizeof(float), count - at));
    state.read(name, at, values);
    convert(sink, DType::kF32, std::as_bytes(std::span(values)), to);
  }
}

std::vector<TensorSource> sources(const ModelFolder& model, const OptimizerStateReader* state,
                                  std::optional<DType> dtype) {
  std::vector<TensorSource> all;
  for (const std::string& name : model.names()) {
    const ModelFolder::Tensor tensor = model.tensor(name);
    const DType stored = tensor.info->spec.dtype;
    TensorSource source{name, tensor.info->spec, {}, tensor.info->boolean};
    if (dtype && is_floating(stored)) source.spec.dtype = *dtype;
    const std::string master = master_name(name);
    const DType to = source.spec.dtype;
    if (to == DType::kF32 && stored != to && state != nullptr && state->contains(master)) {
      source.produce = [state, master, to](const ByteSink& sink) { from_master(sink, *state, master, to); };
    } else {
      source.produce = [bytes = tensor.bytes, stored, to](const ByteSink& sink) { convert(sink, stored, bytes, to); };
    }
    all.push_back(std::move(source));
  }
  return all;
}

void report(const std::string& output, const std::vector<FileDigest>& written, const fs::path& folder) {
  std::uint64_t bytes = 0;
  for (const FileDigest& file : written) bytes += file.size;
  fmt::print("{}: {} files, {:.3f} GB, from {}\n", output, written.size(), static_cast<double>(bytes) * 1e-9,
             folder.string());
}

// The sources in another element type; one tensor at a time is in memory.
std::vector<TensorSource> in_dtype(std::vector<TensorSource> sources, std::optional<DType> dtype) {
  if (!dtype) return sources;
  for (TensorSource& source : sources) {
    const DType stored = source.spec.dtype;
    if (!is_floating(stored) || stored == *dtype) continue;
    source.spec.dtype = *dtype;
    source.produce = [inner = std::move(source.produce), stored, to = *dtype](const ByteSink& sink) {
      inner([&](std::span<const std::byte> bytes) { convert(sink, stored, bytes, to); });
    };
  }
  return sources;
}

void set_dtype(Json& config, std::optional<DType> dtype) {
  if (!dtype) return;
  const char* name = *dtype == DType::kF32 ? "float32" : *dtype == DType::kBF16 ? "bfloat16" : "float16";
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = name;
}

// The base model with the adapter's changes in its weights.
void export_merged(const fs::path& folder, const std::string& base_folder, const std::string& output,
                   std::optional<DType> dtype, ModelFolderOptions options) {
  const ModelFolder base(base_of_adapter(folder, base_folder));
  if (fs::exists(output) && fs::equivalent(base.folder(), output))
    throw usage_error("the output folder is the base model itself").at("--output");
  const auto model = add_lora(make_model(base.config(), (base.folder() / "config.json").string()),
                              read_adapter_config(folder), (folder / kAdapterConfig).string());
  const ModelFolder adapter(folder / kAdapterWeights);
  options.carry_from = base.folder();
  Json config = base.config();
  set_dtype(config, dtype);
  report(output, write_model_folder(output, config, in_dtype(merged_sources(base, *model, adapter), dtype), options),
         folder);
}

void export_adapter(const fs::path& folder, const std::string& output, std::optional<DType> dtype,
                    ModelFolderOptions options) {
  const Json config = read_adapter_json(folder);
  const ModelFolder adapter(folder / kAdapterWeights);
  options.adapter = true;
  report(output, write_model_folder(output, config, in_dtype(sources_of(adapter), dtype), options), folder);
}

}  // namespace

int export_command(const Words& words) {
  CLI::App app("Writes the model of a checkpoint as a plain Hugging Face folder, without holding it in memory.",
               "export");
  std::string from, output, dtype_word, base_folder;
  bool merge = false;
  double shard_gigabytes = 5;
  app.add_option("checkpoint", from, "a checkpoint folder, or an output_dir (its newest whole checkpoint)")->required();
  app.add_option("--output", output, "folder to write")->required();
  app.add_option("--dtype", dtype_word,
                 "f32 (from the master weights where there are any), bf16 or f16; else as stored");
  app.add_option("--max_shard_size", shard_gigabytes, "largest weights file, GB")->check(CLI::PositiveNumber);
  app.add_flag("--merge", merge, "of a LoRA run: the base model with the adapter's changes in its weights");
  app.add_option("--base", base_folder, "with --merge: the base model (default: as adapter_config.json says)");
  if (!parse_words(app, words)) return 0;
  std::optional<DType> dtype;
  if (!dtype_word.empty()) {
    dtype = parse_dtype(dtype_word);
    if (!dtype || !is_floating(*dtype) || *dtype == DType::kF64)
      throw usage_error(fmt::format("--dtype {} is none of f32, bf16, f16", dtype_word)).at("--dtype");
  }
  const fs::path folder = checkpoint_folder(from);
  const bool whole = fs::exists(folder / CheckpointManifest::kFileName);  // not a bare adapter
  const std::vector<std::string> problems = whole ? CheckpointStore::verify(folder) : std::vector<std::string>{};
  if (!problems.empty())
    throw storage_error(fmt::format("the checkpoint is damaged: {}", problems.front())).at(folder.string());
  if (fs::exists(output) && fs::equivalent(folder, output))
    throw usage_error("the output folder is the checkpoint itself").at("--output");
  ModelFolderOptions options;
  options.carry_from = folder;
  options.max_shard_size = static_cast<std::uint64_t>(shard_gigabytes * 1e9);
  if (is_adapter_folder(folder)) {
    if (merge) {
      export_merged(folder, base_folder, output, dtype, options);
    } else {
      export_adapter(folder, output, dtype, options);
    }
    return 0;
  }
  if (merge || !base_folder.empty()) {
    throw usage_error("the checkpoint holds a whole model: there is no adapter to merge")
        .at(folder.string())
        .mend("leave out --merge and --base");
  }
  const ModelFolder model(folder);
  const std::vector<fs::path> files = optimizer_files(folder);
  const auto state = files.empty() ? nullptr : std::make_unique<OptimizerStateReader>(files);
  Json config = model.config();
  set_dtype(config, dtype);
  report(output, write_model_folder(output, config, sources(model, state.get(), dtype), options), folder);
  return 0;
}

}  // namespace convoy
