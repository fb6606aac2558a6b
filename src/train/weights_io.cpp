#include "train/weights_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"

namespace convoy {
namespace {

// One tensor of the optimizer's file, which is rows of a parameter's state, and what of it this rank holds.
struct StateTensor {
  std::string file_name;
  Role role;
  int moment;
  std::size_t parameter;
  Shape shape;
  DType dtype;
  std::int64_t first;       // element of the parameter that is its first
  std::int64_t begin, end;  // elements of the parameter that this rank holds of it
  bool empty() const { return begin >= end; }
  bool whole() const { return begin == first && end - begin == shape.numel(); }
};

std::vector<StateTensor> state_tensors(const Engine& engine) {
  std::vector<StateTensor> all;
  const auto add = [&](const std::string& prefix, Role role, int moment) {
    for (const FileTensor& tensor : engine.model().file_tensors()) {
      const Parameter& parameter = engine.model().parameters()[tensor.parameter];
      if (!parameter.trainable) continue;
      const std::int64_t first = tensor.first_row * (parameter.shape.numel() / parameter.shape[0]);
      const StoredPart held = engine.store().part(role, tensor.parameter, moment);
      all.push_back({prefix + tensor.name, role, moment, tensor.parameter, tensor.shape, held.slot->spec.dtype, first,
                     std::max(first, held.first), std::min(first + tensor.shape.numel(), held.first + held.count)});
    }
  };
  if (engine.shape().has_master()) add("master.", Role::kMaster, 0);
  for (int m = 0; m < engine.shape().optimizer.moments(); ++m)
    add(m == 0 ? "exp_avg." : "exp_avg_sq.", Role::kMoment, m);
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
  for (const std::size_t parameter : map.fresh) store.initialize_fresh(parameter);
  for (const StoredBinding& binding : map.bindings) {
    if (binding.carried || !folder.contains(binding.stored.name)) continue;
    store.set_rows(binding.parameter, binding.first_row, binding.stored.spec.dtype,
                   folder.tensor(binding.stored.name).bytes);
  }
  if (store.model().writes_all_names()) return canonical_weights(store.model(), stored_dtype(map));
  return map;
}

std::vector<TensorSource> snapshot_weights(const ParameterStore& store, const WeightMap& map, const ModelFolder* source,
                                           Communicator* communicator, bool keep) {
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  std::map<std::pair<std::size_t, DType>, Bytes> parameters;  // a map: the ranks gather in one order
  for (const StoredBinding& binding : map.bindings) {
    if (!binding.carried) parameters[{binding.parameter, binding.stored.spec.dtype}] = nullptr;
  }
  for (auto& [key, bytes] : parameters) {
    const auto& [parameter, dtype] = key;
    if (store.is_whole(parameter, dtype)) {
      if (!keep) continue;
      const std::int64_t rows = store.model().parameters()[parameter].shape[0];
      bytes = std::make_shared<const std::vector<std::byte>>(store.rows(parameter, 0, rows, dtype));
    } else {
      check(communicator != nullptr, "sharded weights are saved without the other ranks");
      auto whole = store.gather(parameter, dtype, *communicator);
      if (keep) bytes = std::make_shared<const std::vector<std::byte>>(std::move(whole));
    }
  }
  std::vector<TensorSource> all;
  for (const StoredBinding& binding : map.bindings) {
    if (!keep) break;
    TensorSource tensor{binding.stored.name, binding.stored.spec, {}, false};
    if (binding.carried) {
      check(source != nullptr, "a tensor is carried along but its folder is gone");
      tensor.produce = [source, name = binding.stored.name](const ByteSink& sink) { sink(source->tensor(name).bytes); };
    } else {
      const Shape& shape = store.model().parameters()[binding.parameter].shape;
      const std::size_t row = static_cast<std::size_t>(shape.numel() / shape[0]) * size_of(binding.stored.spec.dtype);
      tensor.produce = [bytes = parameters.at({binding.parameter, binding.stored.spec.dtype}),
                        first = static_cast<std::size_t>(binding.first_row) * row, count = binding.stored.spec.bytes()](
                           const ByteSink& sink) { sink(std::span(*bytes).subspan(first, count)); };
    }
    all.push_back(std::move(tensor));
  }
  return all;
}

std::vector<OptimizerTensor> optimizer_tensors(const Engine& engine) {
  std::vector<OptimizerTensor> all;
  for (const StateTensor& tensor : state_tensors(engine)) {
    if (tensor.empty()) continue;
    OptimizerTensor made{tensor.file_name, {tensor.dtype, tensor.shape}, std::nullopt};
    if (!tensor.whole())
      made.slice = FlatSlice{static_cast<std::uint64_t>(tensor.begin - tensor.first),
                             static_cast<std::uint64_t>(tensor.end - tensor.begin)};
    all.push_back(std::move(made));
  }
  return all;
}

std::string optimizer_file(const Engine& engine) {
  const ZeroOptions& zero = engine.shape().zero;
  if (!zero.shards_state()) return kOptimizerFile;
  return fmt::format("optimizer-{:05}-of-{:05}.safetensors", zero.rank + 1, zero.world);
}

FileDigest write_optimizer_state(const std::filesystem::path& file, const OptimizerSnapshot& snapshot) {
  OptimizerStateWriter writer(file, snapshot.tensors);
  for (std::size_t i = 0; i < snapshot.tensors.size(); ++i) writer.write(snapshot.tensors[i].name, snapshot.values[i]);
  return writer.close();
}

OptimizerSnapshot snapshot_optimizer(const Engine& engine) {
  OptimizerSnapshot made{optimizer_tensors(engine), {}};
  for (const StateTensor& tensor : state_tensors(engine)) {
    if (tensor.empty()) continue;
    const StoredPart held = engine.store().part(tensor.role, tensor.parameter, tensor.moment);
    made.values.push_back(
        engine.store().read_elements(tensor.role, held, tensor.begin - held.first, tensor.end - tensor.begin));
    check(made.values.back().size() == static_cast<std::size_t>(tensor.end - tensor.begin) * size_of(tensor.dtype),
          "a state of another type");
  }
  return made;
}

void read_optimizer_state(Engine& engine, const std::filesystem::path& checkpoint) {
  const OptimizerStateReader reader(optimizer_files(checkpoint));
  const std::vector<StateTensor> wanted = state_tensors(engine);
  for (const StateTensor& tensor : wanted) {
    if (!reader.contains(tensor.file_name)) {
      throw data_error(fmt::format("the optimizer state has no '{}'", tensor.file_name))
          .at(checkpoint.string())
          .mend("resume with the optimizer and precision that the checkpoint was written with");
    }
    if (reader.spec(tensor.file_name).dtype != tensor.dtype) {
      throw data_error(fmt::format("optimizer state '{}' is {}, this run keeps {}", tensor.file_name,
                                   name_of(reader.spec(tensor.file_name).dtype), name_of(tensor.dtype)))
          .at(checkpoint.string())
          .mend("keep optimizer_states as the checkpoint was written with");
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
  for (const StateTensor& tensor : wanted) {
    if (tensor.empty()) continue;
    std::vector<std::byte> values(static_cast<std::size_t>(tensor.end - tensor.begin) * size_of(tensor.dtype));
    reader.read_bytes(tensor.file_name, static_cast<std::uint64_t>(tensor.begin - tensor.first), values);
    const StoredPart held = engine.store().part(tensor.role, tensor.parameter, tensor.moment);
    engine.store().write_elements(tensor.role, held, tensor.begin - held.first, values);
  }
}

}  // namespace convoy
