#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/error.h"
#include "checkpoint/model_folder.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// What a model needs beside config and weights: tokenizer, chat template, feature extractor, generation settings,
// remote code, licence.
constexpr std::array kCarried = {"tokenizer*",
                                 "*.model",
                                 "*.tiktoken",
                                 "vocab.*",
                                 "merges.txt",
                                 "*_tokens.json",
                                 "*_tokens_map.json",
                                 "chat_template*",
                                 "*.jinja",
                                 "generation_config.json",
                                 "normalizer.json",
                                 "processor_*.json",
                                 "preprocessor_*.json",
                                 "*_preprocessor_config.json",
                                 "*.py",
                                 "LICENSE*",
                                 "LICENCE*",
                                 "NOTICE*",
                                 "USE_POLICY*"};
constexpr const char* kTemplates = "additional_chat_templates";

bool matches(const char* pattern, const std::string& name) {
  return ::fnmatch(pattern, name.c_str(), 0) == 0;
}

constexpr std::string_view kUnfinished = ".partial";

// Weights in one of the names that transformers looks for, or an unfinished file of these.
bool is_weights_name(std::string name) {
  if (name.ends_with(kUnfinished)) name.resize(name.size() - kUnfinished.size());
  return name == "model.safetensors" || name == "model.safetensors.index.json" ||
         matches("model-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].safetensors", name);
}

// Files under temporary names in their folder until publish(), which renames all of them; what was not published is
// removed again.
class StagedFiles {
 public:
  explicit StagedFiles(fs::path folder) : folder_(std::move(folder)) {}
  ~StagedFiles() {
    std::error_code ignored;
    for (const FileDigest& file : files_) fs::remove(temporary(file.name), ignored);
    if (!open_.empty()) fs::remove(temporary(open_), ignored);
  }
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;

  // The path to write the file `name` at, before add().
  fs::path begin(const std::string& name) {
    fs::path path = temporary(name);
    fs::create_directories(path.parent_path());
    open_ = name;
    return path;
  }
  void add(const std::string& name, FileDigest digest) {
    digest.name = name;
    files_.push_back(std::move(digest));
    open_.clear();
  }
  std::vector<FileDigest> publish() {
    std::set<fs::path> folders = {folder_};
    for (const FileDigest& file : files_) {
      fs::rename(temporary(file.name), folder_ / file.name);
      folders.insert((folder_ / file.name).parent_path());
    }
    for (const fs::path& folder : folders) sync_path(folder);
    return std::exchange(files_, {});
  }

 private:
  fs::path temporary(const std::string& name) const { return folder_ / (name + std::string(kUnfinished)); }
  fs::path folder_;
  std::vector<FileDigest> files_;
  std::string open_;
};

// Writes one weights file. Wide element types come first (a stable order), so that every tensor is aligned in the file.
void write_weights(StagedFiles& out, const std::string& file_name, const std::vector<TensorSource>& tensors,
                   std::vector<std::size_t> members) {
  std::stable_sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
    return size_of(tensors[a].spec.dtype) > size_of(tensors[b].spec.dtype);
  });
  std::vector<SafetensorsTensor> declared;
  declared.reserve(members.size());
  for (const std::size_t i : members) declared.push_back({tensors[i].name, tensors[i].spec, tensors[i].boolean, 0});
  SafetensorsWriter writer(out.begin(file_name), std::move(declared));
  for (const std::size_t i : members) {
    tensors[i].produce([&](std::span<const std::byte> piece) { writer.write(tensors[i].name, piece); });
  }
  out.add(file_name, writer.close());
}

void write_text(StagedFiles& out, const std::string& name, std::string_view text) {
  HashingWriter writer(out.begin(name));
  writer.write(text);
  out.add(name, writer.close());
}

void write_all_weights(StagedFiles& out, const std::vector<TensorSource>& tensors, std::uint64_t max_shard_size) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(tensors.size());
  for (const TensorSource& tensor : tensors) sizes.push_back(tensor.spec.bytes());
  const auto shards = plan_shards(sizes, max_shard_size);
  if (shards.size() == 1) {
    write_weights(out, "model.safetensors", tensors, shards.front());
    return;
  }
  std::map<std::string, std::string> weight_map;  // sorted, as transformers writes it
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const std::string file = fmt::format("model-{:05d}-of-{:05d}.safetensors", s + 1, shards.size());
    write_weights(out, file, tensors, shards[s]);
    for (const std::size_t i : shards[s]) weight_map[tensors[i].name] = file;
  }
  Json index;
  index["metadata"]["total_size"] = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  index["weight_map"] = weight_map;
  write_text(out, "model.safetensors.index.json", dump_json(index));
}

void require_distinct(const std::vector<TensorSource>& tensors) {
  std::set<std::string> names;
  for (const TensorSource& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw internal_error(
          fmt::format("the tensor '{}' is to be written twice (tied weights are stored once)", tensor.name));
    }
  }
}

}  // namespace

std::vector<std::vector<std::size_t>> plan_shards(std::span<const std::uint64_t> sizes, std::uint64_t max_shard_size) {
  std::vector<std::vector<std::size_t>> shards;
  std::vector<std::size_t> current;
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > max_shard_size) {
      shards.push_back({i});  // the present shard stays open
      continue;
    }
    if (!current.empty() && filled + sizes[i] > max_shard_size) {
      shards.push_back(std::exchange(current, {}));
      filled = 0;
    }
    current.push_back(i);
    filled += sizes[i];
  }
  if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
  return shards;
}

std::vector<fs::path> files_to_carry(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool wanted = std::any_of(kCarried.begin(), kCarried.end(), [&](const char* p) { return matches(p, name); });
    if (wanted && entry.is_regular_file()) files.emplace_back(name);
    if (name == kTemplates && entry.is_directory()) {
      for (const fs::directory_entry& inner : fs::directory_iterator(entry.path())) {
        if (inner.is_regular_file()) files.emplace_back(fs::path(kTemplates) / inner.path().filename());
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<FileDigest> write_model_folder(const fs::path& folder, const Json& config,
                                           const std::vector<TensorSource>& tensors,
                                           const ModelFolderOptions& options) {
  try {
    require_distinct(tensors);
    fs::create_directories(folder);
    std::vector<fs::path> carried;
    if (!options.carry_from.empty() && !fs::equivalent(options.carry_from, folder)) {
      carried = files_to_carry(options.carry_from);
    }
    std::uint64_t needed = 0;
    for (const TensorSource& tensor : tensors) needed += tensor.spec.bytes();
    for (const fs::path& file : carried) needed += fs::file_size(options.carry_from / file);
    require_free_space(folder, needed);

    StagedFiles out(folder);
    if (options.adapter) {
      std::vector<std::size_t> all(tensors.size());
      std::iota(all.begin(), all.end(), std::size_t{0});
      write_weights(out, "adapter_model.safetensors", tensors, std::move(all));
    } else {
      write_all_weights(out, tensors, options.max_shard_size);
    }
    write_text(out, options.adapter ? "adapter_config.json" : "config.json", dump_json(config));
    for (const fs::path& file : carried) {
      out.add(file.string(), copy_with_digest(options.carry_from / file, out.begin(file.string())));
    }
    std::vector<FileDigest> written = out.publish();
    if (options.adapter) return written;

    // A loader prefers model.safetensors to an index: weights of an earlier model would be read instead of these.
    std::set<std::string> names;
    for (const FileDigest& file : written) names.insert(file.name);
    std::vector<fs::path> stale;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (is_weights_name(name) && !names.contains(name)) stale.push_back(entry.path());
    }
    for (const fs::path& path : stale) fs::remove(path);
    if (!stale.empty()) sync_path(folder);
    return written;
  } catch (const fs::filesystem_error& failure) {
    throw storage_error(failure.what());
  }
}

}  // namespace convoy
