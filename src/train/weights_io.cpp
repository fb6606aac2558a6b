#include "train/weights_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"

namespace convoy {
namespace {

// One float32 tensor of the optimizer's file and the storage that it is rows of.
struct StateTensor {
  std::string file_name;
  Role role;
  std::string storage;
  Shape shape;
  std::int64_t first_element;
};

std::vector<StateTensor> state_tensors(const Engine& engine) {
  std::vector<StateTensor> all;
  const auto add = [&](const std::string& prefix, Role role, const auto& storage_of) {
    for (const FileTensor& tensor : engine.model().file_tensors()) {
      const Parameter& parameter = engine.model().parameters()[tensor.parameter];
      const std::int64_t width = parameter.shape.numel() / parameter.shape[0];
      all.push_back({prefix + tensor.name, role, storage_of(parameter.name), tensor.shape, tensor.first_row * width});
    }
  };
  if (engine.shape().has_master()) add("master.", Role::kMaster, [](const std::string& name) { return name; });
  for (int m = 0; m < engine.shape().optimizer.moments(); ++m) {
    add(m == 0 ? "exp_avg." : "exp_avg_sq.", Role::kMoment,
        [m](const std::string& name) { return moment_name(m, name); });
  }
  return all;
}

}  // namespace

WeightMap match_folder(const Model& model, const ModelFolder& folder) {
  std::vector<StoredTensor> stored;
  for (const std::string& name : folder.names()) stored.push_back({name, folder.tensor(name).info->spec});
  return match_weights(model, stored, folder.folder().string());
}

DType stored_dtype(const WeightMap& map) {
  std::map<DType, std::int64_t> elements;
  for (const StoredBinding& binding : map.bindings) {
    if (!binding.carried) elements[binding.stored.spec.dtype] += binding.stored.spec.numel();
  }
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == elements.end() ? DType::kF32 : most->first;
}

WeightMap load_weights(ParameterStore& store, const ModelFolder& folder) {
  WeightMap map = match_folder(store.model(), folder);
  for (const auto& [first, second] : map.must_be_equal) {
    const auto a = folder.tensor(first).bytes;
    const auto b = folder.tensor(second).bytes;
    if (a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size()) != 0) {
      throw data_error(
          fmt::format("'{}' and '{}' are tied by the configuration but hold different values", first, second))
          .at(folder.folder().string())
          .mend(
              "set \"tie_word_embeddings\": false in config.json to train them apart, or remove the one that is not "
              "meant");
    }
  }
  for (const StoredBinding& binding : map.bindings) {
    if (binding.carried) continue;
    store.set_rows(binding.parameter, binding.first_row, binding.stored.spec.dtype,
                   folder.tensor(binding.stored.name).bytes);
  }
  return map;
}

std::vector<TensorSource> weight_sources(const ParameterStore& store, const WeightMap& map, const ModelFolder* source) {
  std::vector<TensorSource> all;
  for (const StoredBinding& binding : map.bindings) {
    TensorSource tensor{binding.stored.name, binding.stored.spec, {}, false};
    if (binding.carried) {
      check(source != nullptr, "a tensor is carried along but its folder is gone");
      tensor.produce = [source, name = binding.stored.name](const ByteSink& sink) { sink(source->tensor(name).bytes); };
    } else {
      tensor.produce = [&store, binding](const ByteSink& sink) {
        const TensorSpec& spec = binding.stored.spec;
        sink(store.rows(binding.parameter, binding.first_row, spec.shape[0], spec.dtype));
      };
    }
    all.push_back(std::move(tensor));
  }
  return all;
}

std::vector<OptimizerTensor> optimizer_tensors(const Engine& engine) {
  std::vector<OptimizerTensor> all;
  const DType dtype = accumulation_dtype(engine.shape().dtype);
  for (const StateTensor& tensor : state_tensors(engine))
    all.push_back({tensor.file_name, {dtype, tensor.shape}, std::nullopt});
  return all;
}

FileDigest write_optimizer_state(const Engine& engine, const std::filesystem::path& file) {
  OptimizerStateWriter writer(file, optimizer_tensors(engine));
  const std::size_t size = size_of(accumulation_dtype(engine.shape().dtype));
  for (const StateTensor& tensor : state_tensors(engine)) {
    const std::vector<std::byte> whole = engine.store().read(tensor.role, tensor.storage);
    const auto begin = static_cast<std::size_t>(tensor.first_element) * size;
    writer.write(tensor.file_name,
                 std::span(whole).subspan(begin, static_cast<std::size_t>(tensor.shape.numel()) * size));
  }
  return writer.close();
}

void read_optimizer_state(Engine& engine, const std::filesystem::path& checkpoint) {
  const OptimizerStateReader reader(optimizer_files(checkpoint));
  const DType dtype = accumulation_dtype(engine.shape().dtype);
  const std::vector<StateTensor> wanted = state_tensors(engine);
  for (const StateTensor& tensor : wanted) {
    if (!reader.contains(tensor.file_name)) {
      throw data_error(fmt::format("the optimizer state has no '{}'", tensor.file_name))
          .at(checkpoint.string())
          .mend("resume with the optimizer and precision that the checkpoint was written with");
    }
    if (reader.spec(tensor.file_name).shape != tensor.shape) {
      throw data_error(fmt::format("optimizer state '{}' has shape {}, the model asks for {}", tensor.file_name,
                                   reader.spec(tensor.file_name).shape.str(), tensor.shape.str()))
          .at(checkpoint.string());
    }
  }
  std::set<std::string> used;
  for (const StateTensor& tensor : wanted) used.insert(tensor.file_name);
  for (const std::string& name : reader.names()) {
    if (used.count(name) > 0) continue;
    throw data_error(
        fmt::format("the optimizer state holds '{}', which this run's optimizer and precision do not use", name))
        .at(checkpoint.string())
        .mend("resume with the optimizer and precision that the checkpoint was written with");
  }
  std::map<std::pair<Role, std::string>, std::vector<std::byte>> storage;
  for (const StateTensor& tensor : wanted) {
    auto [place, fresh] = storage.try_emplace({tensor.role, tensor.storage});
    if (fresh) place->second.resize(engine.programs().layout.find(tensor.role, tensor.storage).spec.bytes());
    const std::size_t size = size_of(dtype);
    const auto begin = static_cast<std::size_t>(tensor.first_element) * size;
    reader.read_bytes(tensor.file_name, 0,
                      std::span(place->second).subspan(begin, static_cast<std::size_t>(tensor.shape.numel()) * size));
  }
  for (const auto& [key, bytes] : storage) engine.store().write(key.first, key.second, bytes);
}

}  // namespace convoy
