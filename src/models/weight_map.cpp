#include "models/weight_map.h"

#include <fmt/format.h>

#include "base/error.h"

namespace convoy {
namespace {

std::string list(const std::vector<std::string>& names) {
  std::string text;
  const std::size_t shown = std::min<std::size_t>(names.size(), 8);
  for (std::size_t i = 0; i < shown; ++i) text += (i ? ", " : "") + names[i];
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// The canonical name of a stored one: with the base prefix put back, or the head's name for the tied embedding.
std::string canonical_name(const Model& model, const std::map<std::string, const FileTensor*>& known,
                           const std::string& file_name) {
  const std::string stored = model.renamed(file_name);
  if (known.count(stored) > 0) return stored;
  const std::string prefix = model.base_prefix();
  if (!prefix.empty() && known.count(prefix + stored) > 0) return prefix + stored;
  if (!model.tied_head().empty() && stored == model.tied_head()) return model.tied_embedding();
  return {};
}

}  // namespace

WeightMap match_weights(const Model& model, const std::vector<StoredTensor>& stored, const std::string& where) {
  std::map<std::string, const FileTensor*> known;
  for (const FileTensor& tensor : model.file_tensors()) {
    if (!tensor.adapter) known[tensor.name] = &tensor;
  }
  WeightMap map;
  std::map<std::string, std::string> found;  // canonical → stored
  std::vector<std::string> unexpected;
  for (const StoredTensor& tensor : stored) {
    const std::string canonical = canonical_name(model, known, tensor.name);
    if (canonical.empty()) {
      if (model.is_buffer(tensor.name)) {
        map.bindings.push_back({tensor, true, 0, 0});
      } else {
        unexpected.push_back(tensor.name);
      }
      continue;
    }
    const FileTensor& target = *known.at(canonical);
    if (tensor.spec.shape != target.shape) {
      throw data_error(fmt::format("tensor '{}' has shape {}, the configuration asks for {}", tensor.name,
                                   tensor.spec.shape.str(), target.shape.str()))
          .at(where)
          .mend("use the config.json that belongs to these weights");
    }
    if (!is_floating(tensor.spec.dtype)) {
      throw data_error(
          fmt::format("tensor '{}' is {}; weights must be f32, bf16 or f16", tensor.name, name_of(tensor.spec.dtype)))
          .at(where);
    }
    const auto [place, first] = found.try_emplace(canonical, tensor.name);
    if (!first) map.must_be_equal.emplace_back(place->second, tensor.name);
    map.bindings.push_back({tensor, false, target.parameter, target.first_row});
  }
  std::vector<std::string> missing;
  for (const FileTensor& tensor : model.file_tensors()) {
    if (!tensor.adapter && found.count(tensor.name) == 0) missing.push_back(tensor.name);
  }
  if (missing.empty() && unexpected.empty()) return map;
  std::string what;
  if (!missing.empty()) what += fmt::format("the weights lack {} tensors: {}", missing.size(), list(missing));
  if (!unexpected.empty())
    what += fmt::format("{}the weights hold {} tensors that {} does not have: {}", what.empty() ? "" : "; ",
                        unexpected.size(), model.family(), list(unexpected));
  throw data_error(what).at(where).mend("check that config.json and the weights belong together");
}

WeightMap canonical_weights(const Model& model, DType dtype) {
  WeightMap map;
  for (const FileTensor& tensor : model.file_tensors()) {
    if (tensor.adapter) continue;
    map.bindings.push_back({{tensor.name, {dtype, tensor.shape}}, false, tensor.parameter, tensor.first_row});
    if (model.writes_all_names() && tensor.name == model.tied_embedding())
      map.bindings.push_back({{model.tied_head(), {dtype, tensor.shape}}, false, tensor.parameter, tensor.first_row});
  }
  return map;
}

}  // namespace convoy
