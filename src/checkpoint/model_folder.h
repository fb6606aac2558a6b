// Hugging Face model folders: config.json and safetensors weights, in one file or sharded with an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace convoy {

// A model opened for reading. Tensor bytes are mapped: they come from the disk when touched.
class ModelFolder {
 public:
  // `path`: a model folder, or one *.safetensors file (whose folder may lack a config.json).
  // Throws: storage, for what is missing (folder, config.json, weights, shards); data, for files that contradict each
  // other (an index and its shards) or are malformed; usage, for a config.json that is not JSON.
  explicit ModelFolder(const std::filesystem::path& path);
  ~ModelFolder();
  ModelFolder(ModelFolder&&) noexcept;
  ModelFolder& operator=(ModelFolder&&) noexcept;

  const std::filesystem::path& folder() const { return folder_; }
  bool has_config() const { return config_ != nullptr; }
  // config.json as it was read. Throws a storage error if there is none.
  const Json& config() const;

  struct Tensor {
    const SafetensorsTensor* info = nullptr;
    const SafetensorsFile* file = nullptr;
    std::span<const std::byte> bytes;
  };
  // In file order, shard after shard.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return place_.contains(name); }
  // Throws a data error that names the folder and the nearest tensor name.
  Tensor tensor(const std::string& name) const;
  std::uint64_t total_bytes() const { return total_bytes_; }

 private:
  void open_file(const std::filesystem::path& path);
  void open_index(const std::filesystem::path& path);
  void open_folder();

  std::filesystem::path folder_;
  std::unique_ptr<Json> config_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::pair<std::size_t, const SafetensorsTensor*>> place_;
  std::uint64_t total_bytes_ = 0;
};

using ByteSink = std::function<void(std::span<const std::byte>)>;

// A tensor to be written. `produce` is called once and hands the tensor's bytes to the sink front to back, in pieces
// of any size.
struct TensorSource {
  std::string name;
  TensorSpec spec;
  std::function<void(const ByteSink&)> produce;
  bool boolean = false;
};

struct ModelFolderOptions {
  // A new weights file begins where the present one would grow beyond this many bytes (5 GB, as in transformers 4).
  std::uint64_t max_shard_size = 5'000'000'000;
  // The folder whose tokenizer, chat template, generation settings, code and licence are carried along; empty: none.
  std::filesystem::path carry_from;
  // Write an adapter instead of a model: adapter_config.json and adapter_model.safetensors. A model's weights in the
  // folder stay.
  bool adapter = false;
};

// Writes config.json, the weights and what is carried along into `folder` (made if need be), so that transformers can
// read it. Each file appears whole or not at all; weights of an earlier model in the folder are removed at the end.
// Returns the files written, names relative to `folder`. Throws storage errors.
std::vector<FileDigest> write_model_folder(const std::filesystem::path& folder, const Json& config,
                                           const std::vector<TensorSource>& tensors,
                                           const ModelFolderOptions& options = {});

// How the tensors are dealt to weights files, as indices into `sizes` (bytes): in order, greedily; one that is larger
// than `max_shard_size` gets a file of its own.
std::vector<std::vector<std::size_t>> plan_shards(std::span<const std::uint64_t> sizes, std::uint64_t max_shard_size);

// The files of a model folder that go along with new weights, relative to it, sorted.
std::vector<std::filesystem::path> files_to_carry(const std::filesystem::path& folder);

// The tensors of an opened model, to be written again as they are. `model` must outlive the result.
std::vector<TensorSource> sources_of(const ModelFolder& model);

}  // namespace convoy
