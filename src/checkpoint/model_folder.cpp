#include "checkpoint/model_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/suggest.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// "a, b, c and 7 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  const std::size_t shown = std::min(names.size(), kShown);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// Says why a folder has no weights that can be read.
Error no_weights(const fs::path& folder) {
  std::vector<std::string> pickles, safetensors;
  bool adapter = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt") {
      if (name != "training_args.bin") pickles.push_back(name);
    }
    if (extension == ".safetensors") safetensors.push_back(name);
    adapter = adapter || name == "adapter_config.json";
  }
  std::sort(pickles.begin(), pickles.end());
  std::sort(safetensors.begin(), safetensors.end());
  if (adapter) {
    return storage_error("this folder holds a LoRA adapter, not a whole model")
        .at(folder.string())
        .mend("name the base model here and give this folder as the adapter");
  }
  if (!safetensors.empty()) {
    return storage_error(fmt::format("there is neither {} nor {}, but {}", kWeights, kIndex, some_of(safetensors)))
        .at(folder.string())
        .mend("name the one file to read instead of its folder");
  }
  if (!pickles.empty()) {
    return storage_error(fmt::format("the weights are PyTorch pickles ({}), which Convoy does not read: unpickling can "
                                     "run any code",
                                     some_of(pickles)))
        .at(folder.string())
        .mend(
            "convert them once with transformers: python -c \"from transformers import AutoModelForCausalLM as M; "
            "M.from_pretrained('DIR', dtype='auto').save_pretrained('NEW')\", or take the model's safetensors "
            "revision");
  }
  return storage_error(fmt::format("there are no weights: neither {} nor {}", kWeights, kIndex))
      .at(folder.string())
      .mend("download the weights too (a clone without Git LFS leaves them out)");
}

// name → file, from an index. Not through Json: its ordered objects cost quadratic time, and a mixture-of-experts model
// has 100,000 tensors.
std::map<std::string, std::string> read_weight_map(const fs::path& path) {
  nlohmann::json index;
  try {
    index = nlohmann::json::parse(read_file(path));
  } catch (const nlohmann::json::parse_error& failure) {
    throw data_error(fmt::format("the index is not valid JSON (byte {})", failure.byte)).at(path.string());
  } catch (const nlohmann::json::exception& failure) {
    throw data_error(fmt::format("the index is not valid JSON: {}", failure.what())).at(path.string());
  }
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (found == index.end() || !found->is_object()) {
    throw data_error("the index has no 'weight_map' object").at(path.string());
  }
  std::map<std::string, std::string> map;
  for (const auto& [name, file] : found->items()) {
    if (!file.is_string())
      throw data_error(fmt::format("the file of tensor '{}' is not a string", name)).at(path.string());
    require_inner_name(file.get<std::string>(), path.string());
    map.emplace(name, file.get<std::string>());
  }
  if (map.empty()) throw data_error("the index names no tensors").at(path.string());
  return map;
}

}  // namespace

ModelFolder::~ModelFolder() = default;
ModelFolder::ModelFolder(ModelFolder&&) noexcept = default;
ModelFolder& ModelFolder::operator=(ModelFolder&&) noexcept = default;

ModelFolder::ModelFolder(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    folder_ = path;
    open_folder();
    return;
  }
  if (!fs::exists(path, ignored)) {
    throw storage_error("there is no such model folder or file")
        .at(path.string())
        .mend("give the path of a downloaded Hugging Face model folder");
  }
  folder_ = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (fs::exists(folder_ / "config.json")) config_ = std::make_unique<Json>(read_json(folder_ / "config.json"));
  if (path.filename().string().ends_with(".index.json")) {
    open_index(path);
  } else {
    open_file(path);
  }
}

const Json& ModelFolder::config() const {
  if (config_ == nullptr) {
    throw storage_error("there is no config.json")
        .at(folder_.string())
        .mend("put the model's config.json beside its weights");
  }
  return *config_;
}

void ModelFolder::open_folder() {
  const fs::path config = folder_ / "config.json";
  const bool whole = fs::exists(folder_ / kWeights);
  const bool sharded = fs::exists(folder_ / kIndex);
  if (!whole && !sharded) throw no_weights(folder_);
  if (!fs::exists(config)) {
    throw storage_error("there is no config.json")
        .at(folder_.string())
        .mend("put the model's config.json beside its weights");
  }
  config_ = std::make_unique<Json>(read_json(config));
  if (!config_->is_object()) throw usage_error("not a JSON object").at(config.string());
  if (whole && sharded) {
    log_warning("{} holds both {} and {}; the first is read, as transformers does", folder_.string(), kWeights, kIndex);
  }
  if (whole) {
    open_file(folder_ / kWeights);
  } else {
    open_index(folder_ / kIndex);
  }
}

void ModelFolder::open_file(const fs::path& path) {
  const std::size_t number = files_.size();
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const SafetensorsTensor& tensor : files_.back()->tensors()) {
    const auto [place, fresh] = place_.emplace(tensor.name, std::pair(number, &tensor));
    if (!fresh) {
      throw data_error(fmt::format("the tensor '{}' is in two files: {} and {}", tensor.name,
                                   files_[place->second.first]->path().filename().string(), path.filename().string()))
          .at(path.parent_path().string())
          .mend("one of the files is left over from another model: remove it, or download the model again");
    }
    names_.push_back(tensor.name);
    total_bytes_ += tensor.spec.bytes();
  }
}

void ModelFolder::open_index(const fs::path& path) {
  const auto map = read_weight_map(path);
  std::set<std::string> shards;
  for (const auto& [name, file] : map) shards.insert(file);
  std::vector<std::string> missing;
  for (const std::string& file : shards) {
    if (!fs::exists(path.parent_path() / file)) missing.push_back(file);
  }
  if (!missing.empty()) {
    throw storage_error(
        fmt::format("{} of {} weights files are missing: {}", missing.size(), shards.size(), some_of(missing)))
        .at(path.string())
        .mend("finish the download: the index names these files");
  }
  for (const std::string& file : shards) open_file(path.parent_path() / file);

  std::vector<std::string> absent;
  for (const auto& [name, file] : map) {
    const auto found = place_.find(name);
    if (found == place_.end() || files_[found->second.first]->path() != path.parent_path() / file) {
      absent.push_back(fmt::format("'{}' (should be in {})", name, file));
    }
  }
  const auto complain = [&](const char* problem, const std::vector<std::string>& tensors) {
    throw data_error(fmt::format("{}: {}", problem, some_of(tensors)))
        .at(path.string())
        .mend("the index and the weights files are of different versions: download the model again");
  };
  if (!absent.empty()) complain("tensors of the index are not in their files", absent);
  std::vector<std::string> unlisted;
  for (const std::string& name : names_) {
    if (!map.contains(name)) {
      unlisted.push_back(fmt::format("'{}' (in {})", name, files_[place_.at(name).first]->path().filename().string()));
    }
  }
  if (!unlisted.empty()) complain("the weights files hold tensors that the index does not name", unlisted);
}

ModelFolder::Tensor ModelFolder::tensor(const std::string& name) const {
  const auto found = place_.find(name);
  if (found == place_.end()) {
    throw data_error(fmt::format("the model has no tensor '{}'{}", name, did_you_mean(name, names_)))
        .at(folder_.string());
  }
  const SafetensorsFile& file = *files_[found->second.first];
  return {found->second.second, &file, file.bytes(*found->second.second)};
}

std::vector<TensorSource> sources_of(const ModelFolder& model) {
  std::vector<TensorSource> sources;
  for (const std::string& name : model.names()) {
    const ModelFolder::Tensor tensor = model.tensor(name);
    sources.push_back(
        {name, tensor.info->spec, [bytes = tensor.bytes](const ByteSink& sink) { sink(bytes); }, tensor.info->boolean});
  }
  return sources;
}

}  // namespace convoy
