#include "train/adapter_io.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/parallel.h"
#include "train/weights_io.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// Older files of peft keep the adapter's name: "….lora_A.default.weight".
std::string without_default(std::string name) {
  constexpr std::string_view kInfix = ".default.weight";
  if (name.ends_with(kInfix)) name.replace(name.size() - kInfix.size(), kInfix.size(), ".weight");
  return name;
}

std::string first_of(const std::vector<std::string>& names) {
  const std::size_t shown = std::min<std::size_t>(names.size(), 5);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// Which tensor of the file is which of the map's.
std::map<std::string, std::string> match_adapter(const Model& model, const ModelFolder& file) {
  std::map<std::string, TensorSpec> wanted;
  for (const StoredBinding& binding : adapter_map(model, DType::kF32).bindings)
    wanted[binding.stored.name] = binding.stored.spec;
  std::map<std::string, std::string> found;  // ours → the file's
  std::vector<std::string> unexpected, missing;
  const std::string where = (file.folder() / kAdapterWeights).string();
  for (const std::string& name : file.names()) {
    const std::string ours = without_default(name);
    const auto place = wanted.find(ours);
    if (place == wanted.end()) {
      unexpected.push_back(name);
      continue;
    }
    const TensorSpec& spec = file.tensor(name).info->spec;
    if (spec.shape != place->second.shape) {
      throw data_error(fmt::format("tensor '{}' has shape {}, model and adapter configuration ask for {}", name,
                                   spec.shape.str(), place->second.shape.str()))
          .at(where)
          .mend("give the base model and the rank that the adapter was trained with");
    }
    if (!is_floating(spec.dtype))
      throw data_error(fmt::format("tensor '{}' is {}", name, name_of(spec.dtype))).at(where);
    found[ours] = name;
  }
  const std::string head = saved_module_name(model.tied_head());
  const std::string embedding = saved_module_name(model.tied_embedding());
  for (const auto& [name, spec] : wanted) {
    if (found.contains(name)) continue;
    // Either name of a tied tensor will do.
    if (!model.tied_head().empty() && name == head && found.contains(embedding)) continue;
    if (!model.tied_head().empty() && name == embedding && found.contains(head)) continue;
    missing.push_back(name);
  }
  if (missing.empty() && unexpected.empty()) return found;
  std::string what;
  if (!missing.empty()) what = fmt::format("the adapter lacks {} tensors: {}", missing.size(), first_of(missing));
  if (!unexpected.empty()) {
    what += fmt::format("{}the adapter holds {} tensors that belong to none of its modules: {}",
                        what.empty() ? "" : "; ", unexpected.size(), first_of(unexpected));
  }
  throw data_error(what).at(where).mend(
      "give the base model that the adapter was trained on, and the same target_modules and modules_to_save");
}

std::vector<float> values_of(const ModelFolder& file, const std::string& name) {
  const ModelFolder::Tensor tensor = file.tensor(name);
  const DType dtype = tensor.info->spec.dtype;
  std::vector<float> values(static_cast<std::size_t>(tensor.info->spec.numel()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(load_float(dtype, tensor.bytes.data() + i * size_of(dtype)));
  return values;
}

// One tensor of the base with an adapter's change.
struct Merge {
  DType dtype;
  std::span<const std::byte> bytes;
  std::int64_t out, in, rank;
  bool transposed;
  double scale;
  std::vector<float> a, b;

  std::vector<std::byte> run() const {
    std::vector<std::byte> result(bytes.size());
    const std::size_t size = size_of(dtype);
    parallel_for(out, [&](std::int64_t row) {
      std::vector<double> change(static_cast<std::size_t>(in), 0.0);
      for (std::int64_t k = 0; k < rank; ++k) {
        const double factor = scale * static_cast<double>(b[static_cast<std::size_t>(row * rank + k)]);
        const float* from = a.data() + k * in;
        for (std::int64_t c = 0; c < in; ++c) change[static_cast<std::size_t>(c)] += factor * from[c];
      }
      for (std::int64_t c = 0; c < in; ++c) {
        const std::size_t at = static_cast<std::size_t>(transposed ? c * out + row : row * in + c) * size;
        store_float(dtype, load_float(dtype, bytes.data() + at) + change[static_cast<std::size_t>(c)],
                    result.data() + at);
      }
    });
    return result;
  }
};

std::vector<std::byte> converted(const ModelFolder& file, const std::string& name, DType to) {
  const std::vector<float> values = values_of(file, name);
  std::vector<std::byte> bytes(values.size() * size_of(to));
  for (std::size_t i = 0; i < values.size(); ++i)
    store_float(to, static_cast<double>(values[i]), bytes.data() + i * size_of(to));
  return bytes;
}

}  // namespace

bool is_adapter_folder(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kAdapterConfig, ignored);
}

Json read_adapter_json(const fs::path& folder) {
  if (!is_adapter_folder(folder)) {
    throw storage_error(fmt::format("there is no {}", kAdapterConfig))
        .at(folder.string())
        .mend("give a folder with an adapter, as a run with lora_rank or peft writes it");
  }
  if (!fs::exists(folder / kAdapterWeights)) {
    throw storage_error(fmt::format("there is no {}", kAdapterWeights))
        .at(folder.string())
        .mend("adapter_model.bin is a pickle, which is not read: save it again with safe_serialization=True");
  }
  return read_json(folder / kAdapterConfig);
}

LoraConfig read_adapter_config(const fs::path& folder) {
  return read_lora_config(read_adapter_json(folder), (folder / kAdapterConfig).string());
}

fs::path base_of_adapter(const fs::path& adapter, const std::string& given) {
  if (!given.empty()) return given;
  const Json config = read_adapter_json(adapter);
  const auto place = config.is_object() ? config.find("base_model_name_or_path") : config.end();
  const std::string named = place != config.end() && place->is_string() ? place->get<std::string>() : "";
  std::error_code ignored;
  if (!named.empty() && fs::is_directory(named, ignored)) return named;
  throw usage_error(named.empty() ? "the adapter does not say which model it belongs to"
                                  : fmt::format("the adapter belongs to the model {}, which is no folder here", named))
      .at(adapter.string())
      .mend("give the base model's folder");
}

ModelAndAdapter resolve_adapter(const std::string& model, const std::string& adapter) {
  if (!is_adapter_folder(model)) return {model, adapter};
  return {base_of_adapter(model, "").string(), adapter.empty() ? model : adapter};
}

WeightMap adapter_map(const Model& model, DType dtype) {
  WeightMap map;
  for (const FileTensor& tensor : model.file_tensors()) {
    if (!model.parameters()[tensor.parameter].trainable) continue;
    const auto add = [&](const std::string& name) {
      map.bindings.push_back({{name, {dtype, tensor.shape}}, false, tensor.parameter, tensor.first_row});
    };
    add(tensor.adapter ? tensor.name : saved_module_name(tensor.name));
    if (!model.tied_embedding().empty() && tensor.name == model.tied_embedding())
      add(saved_module_name(model.tied_head()));
  }
  return map;
}

void draw_adapters(ParameterStore& store) {
  for (const LoraAdapter& adapter : lora_adapters(store.model())) {
    store.initialize_fresh(adapter.a);
    store.initialize_fresh(adapter.b);
  }
}

void load_adapter(ParameterStore& store, const fs::path& folder) {
  const LoraConfig config = read_adapter_config(folder);
  for (const LoraAdapter& adapter : lora_adapters(store.model())) {
    if (config.scale_of(adapter.module.name) == adapter.scale) continue;
    throw data_error(fmt::format("the adapter of '{}' has the scale {:g}, this run gives it {:g}", adapter.module.name,
                                 config.scale_of(adapter.module.name), adapter.scale))
        .at((folder / kAdapterConfig).string())
        .mend("keep lora_rank, lora_alpha and use_rslora as it was trained with");
  }
  const ModelFolder file(folder / kAdapterWeights);
  const auto found = match_adapter(store.model(), file);
  for (const StoredBinding& binding : adapter_map(store.model(), DType::kF32).bindings) {
    const auto place = found.find(binding.stored.name);
    if (place == found.end()) continue;  // the other name of a tied tensor
    const ModelFolder::Tensor tensor = file.tensor(place->second);
    store.set_rows(binding.parameter, binding.first_row, tensor.info->spec.dtype, tensor.bytes);
  }
}

std::vector<TensorSource> merged_sources(const ModelFolder& base, const Model& adapted, const ModelFolder& adapter) {
  const WeightMap map = match_folder(adapted, base);
  const auto found = match_adapter(adapted, adapter);
  // By the place of a tensor: its parameter and first row.
  std::map<std::pair<std::size_t, std::int64_t>, const LoraAdapter*> changes;
  for (const LoraAdapter& each : lora_adapters(adapted))
    changes[{each.module.parameter, each.module.first_row}] = &each;
  std::map<std::pair<std::size_t, std::int64_t>, std::string> saved;
  for (const StoredBinding& binding : adapter_map(adapted, DType::kF32).bindings) {
    const auto place = found.find(binding.stored.name);
    if (place != found.end()) saved[{binding.parameter, binding.first_row}] = place->second;
  }
  std::vector<TensorSource> sources = sources_of(base);
  std::map<std::string, TensorSource*> by_name;
  for (TensorSource& source : sources) by_name[source.name] = &source;
  for (const StoredBinding& binding : map.bindings) {
    if (binding.carried) continue;
    TensorSource& source = *by_name.at(binding.stored.name);
    const std::pair place(binding.parameter, binding.first_row);
    const DType dtype = binding.stored.spec.dtype;
    if (const auto change = changes.find(place); change != changes.end()) {
      const LoraAdapter& each = *change->second;
      source.produce = [&base, &adapted, &adapter, &each, found, name = source.name, dtype](const ByteSink& sink) {
        Merge merge{dtype,
                    base.tensor(name).bytes,
                    each.module.out,
                    each.module.in,
                    adapted.parameters()[each.a].shape[0],
                    each.module.transposed,
                    each.scale,
                    values_of(adapter, found.at(adapted.parameters()[each.a].name)),
                    values_of(adapter, found.at(adapted.parameters()[each.b].name))};
        sink(merge.run());
      };
    } else if (const auto whole = saved.find(place); whole != saved.end()) {
      source.produce = [&adapter, name = whole->second, dtype](const ByteSink& sink) {
        sink(converted(adapter, name, dtype));
      };
    }
  }
  return sources;
}

}  // namespace convoy
