#include "models/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/suggest.h"
#include "graph/ops/linear.h"
#include "graph/ops/linear_cross_entropy.h"
#include "models/freeze.h"
#include "models/wrapped_model.h"
#include "passes/low_rank.h"

namespace convoy {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kWeight = ".weight";
constexpr std::uint32_t kFirstUse = 0x4c000000;  // of the random numbers: beyond those that models number

// The module and every module around it: "a.b.c" → "a.b.c", "a.b", "a".
std::vector<std::string> enclosing(std::string module) {
  std::vector<std::string> all = {module};
  for (std::size_t dot = module.rfind('.'); dot != std::string::npos; dot = module.rfind('.')) {
    module.resize(dot);
    all.push_back(module);
  }
  return all;
}

std::string module_of(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

class LoraModel final : public WrappedModel {
 public:
  LoraModel(std::unique_ptr<Model> model, LoraConfig config, const std::string& where)
      : WrappedModel(std::move(model)), config_(std::move(config)) {
    freeze_base(where);
    for (const LinearModule& module : chosen(where)) add(module);
  }

  ModelGraph build(const GraphOptions& options) const override;
  const std::vector<LoraAdapter>& adapters() const { return adapters_; }

 private:
  void freeze_base(const std::string& where);
  std::vector<LinearModule> chosen(const std::string& where) const;
  void add(const LinearModule& module);
  std::size_t add_parameter(const std::string& name, const Shape& shape, double bound, double deviation);

  LoraConfig config_;
  std::vector<LoraAdapter> adapters_;
};

void LoraModel::freeze_base(const std::string& where) {
  std::set<std::string> unseen(config_.modules_to_save.begin(), config_.modules_to_save.end());
  const auto is_saved = [&](const std::string& tensor) {
    bool saved = false;
    for (const std::string& module : enclosing(module_of(tensor))) {
      for (const std::string& name : config_.modules_to_save) {
        if (!ModuleNames{{name}, false}.match(module)) continue;
        unseen.erase(name);
        saved = true;
      }
    }
    return saved;
  };
  const auto trains = [&](const FileTensor& tensor) {
    const bool own = is_saved(tensor.name);
    const bool tied = tensor.name == tied_embedding() && is_saved(tied_head());
    return own || tied;
  };
  set_trainable(mutable_parameters(), file_tensors(), trains, where);
  if (unseen.empty()) return;
  std::vector<std::string> modules;
  for (const FileTensor& tensor : file_tensors()) modules.push_back(module_of(tensor.name));
  throw usage_error(fmt::format("modules_to_save: the model has no module '{}'{}", *unseen.begin(),
                                did_you_mean(*unseen.begin(), modules)))
      .at(where);
}

std::vector<LinearModule> LoraModel::chosen(const std::string& where) const {
  std::vector<LinearModule> chosen;
  const std::vector<LinearModule> all = linear_modules(base());
  for (const LinearModule& module : all) {
    if (module.head && config_.targets.all_linear()) continue;
    if (!config_.chooses(module.name)) continue;
    if (module.head) {
      throw usage_error(fmt::format("'{}' gives the logits, which LoRA does not adapt here", module.name))
          .at(where)
          .mend("train it whole: modules_to_save");
    }
    if (parameters()[module.parameter].trainable) {
      throw usage_error(fmt::format("'{}' is both adapted and among modules_to_save", module.name)).at(where);
    }
    chosen.push_back(module);
  }
  // A name that chooses nothing is a slip, also beside others that do.
  for (const std::string& name : config_.targets.names) {
    if (config_.targets.regex || config_.targets.all_linear()) break;
    const ModuleNames one{{name}, false};
    if (std::any_of(all.begin(), all.end(), [&](const LinearModule& module) { return one.match(module.name); }))
      continue;
    std::set<std::string> ends;
    for (const LinearModule& module : all) {
      if (!module.head) ends.insert(module.name.substr(module.name.rfind('.') + 1));
    }
    const std::vector<std::string> known(ends.begin(), ends.end());
    throw usage_error(
        fmt::format("target_modules: {} has no linear layer '{}'{}", family(), name, did_you_mean(name, known)))
        .at(where)
        .mend(fmt::format("it has {}; all-linear takes them all", fmt::join(known, ", ")));
  }
  if (chosen.empty()) {
    throw usage_error("target_modules, exclude_modules and layers_to_transform leave no layer to adapt").at(where);
  }
  return chosen;
}

std::size_t LoraModel::add_parameter(const std::string& name, const Shape& shape, double bound, double deviation) {
  Parameter parameter;
  parameter.name = name;
  parameter.shape = shape;
  parameter.init_std = deviation;
  parameter.init_bound = bound;
  FileTensor file{name, shape, parameters().size(), 0};
  file.adapter = true;
  mutable_files().push_back(std::move(file));
  mutable_parameters().push_back(std::move(parameter));
  return parameters().size() - 1;
}

void LoraModel::add(const LinearModule& module) {
  const std::int64_t r = config_.rank_of(module.name);
  const std::string name = std::string(kPrefix) + module.name;
  LoraAdapter adapter{module, 0, 0, config_.scale_of(module.name)};
  const double bound = config_.gaussian ? 0 : 1 / std::sqrt(static_cast<double>(module.in));
  const double deviation = config_.gaussian ? 1 / static_cast<double>(r) : 0;
  adapter.a = add_parameter(name + ".lora_A.weight", {r, module.in}, bound, deviation);
  adapter.b = add_parameter(name + ".lora_B.weight", {module.out, r}, 0, 0);
  adapters_.push_back(std::move(adapter));
}

// The keys of dropout's random numbers: one a token, or one a row of what a model hears.
ValueId dropout_keys(Graph& graph, std::int64_t rows, std::int64_t tokens) {
  const std::string name =
      rows == tokens ? std::string(batch_input::kTokenKeys) : fmt::format("{}{}", batch_input::kRowKeys, rows);
  const ValueId known = graph.find(Role::kBatch, name);
  return known != kNoValue ? known : graph.add_source(Role::kBatch, name, {DType::kI64, {rows}});
}

ModelGraph LoraModel::build(const GraphOptions& options) const {
  ModelGraph built = base().build(options);
  for (std::size_t p = built.weights.size(); p < parameters().size(); ++p) {
    built.weights.push_back(
        built.graph.add_source(Role::kWeight, parameters()[p].name, {options.dtype, parameters()[p].shape}));
  }
  LowRankOptions low_rank;
  low_rank.seed = options.seed;
  const bool drops = options.kind == GraphKind::kTrain && config_.dropout > 0;
  low_rank.keys = [&](Graph& graph, std::int64_t rows) { return dropout_keys(graph, rows, options.tokens); };
  std::vector<LowRankBranch> branches;
  for (const LoraAdapter& adapter : adapters_) {
    LowRankBranch branch;
    branch.weight = built.weights[adapter.module.parameter];
    branch.a = built.weights[adapter.a];
    branch.b = built.weights[adapter.b];
    branch.first_column = adapter.module.first_row;
    branch.scale = adapter.scale;
    branch.dropout = drops ? static_cast<float>(config_.dropout) : 0.0f;
    branch.use = kFirstUse + static_cast<std::uint32_t>(branches.size());
    branches.push_back(branch);
  }
  const auto replaced = add_low_rank(built.graph, branches, low_rank);
  if (const auto found = replaced.find(built.result); found != replaced.end()) built.result = found->second;
  return built;
}

// The modules of one product's weight.
void add_modules(const Model& model, std::size_t parameter, bool transposed, bool head,
                 std::map<std::size_t, LinearModule>& found) {
  const std::vector<FileTensor>& files = model.file_tensors();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const FileTensor& tensor = files[i];
    if (tensor.parameter != parameter || !tensor.name.ends_with(kWeight) || tensor.shape.rank() != 2) continue;
    if (!head && tensor.name == model.tied_embedding()) continue;
    const std::string name = head && tensor.name == model.tied_embedding() ? model.tied_head() : tensor.name;
    // Rows of a transposed weight are inputs: a part of one cannot be adapted by itself.
    if (transposed && tensor.shape != model.parameters()[parameter].shape) continue;
    found[i] = {name.substr(0, name.size() - kWeight.size()),
                parameter,
                transposed ? 0 : tensor.first_row,
                tensor.shape[transposed ? 0 : 1],
                tensor.shape[transposed ? 1 : 0],
                transposed,
                head};
  }
}

}  // namespace

std::vector<LinearModule> linear_modules(const Model& model) {
  GraphOptions options;
  options.kind = GraphKind::kLoss;
  options.tokens = options.table_length = 1;
  if (const auto audio = model.audio()) {
    options.audio_windows = 1;
    options.audio_frames = audio->exact_frames ? audio->frames : audio->frame_multiple;
  }
  const ModelGraph built = model.build(options);
  std::map<ValueId, std::size_t> parameter_of;
  for (std::size_t p = 0; p < built.weights.size(); ++p) parameter_of[built.weights[p]] = p;
  std::map<std::size_t, LinearModule> found;  // by place in file_tensors
  for (const Node& node : built.graph.nodes()) {
    const auto* linear = dynamic_cast<const Linear*>(node.op.get());
    const bool head = dynamic_cast<const LinearCrossEntropy*>(node.op.get()) != nullptr;
    if (linear == nullptr && !head) continue;
    const auto weight = parameter_of.find(node.inputs[1]);
    if (weight != parameter_of.end())
      add_modules(model, weight->second, linear != nullptr && linear->transposed, head, found);
  }
  std::vector<LinearModule> modules;
  for (auto& [place, module] : found) modules.push_back(std::move(module));
  return modules;
}

std::unique_ptr<Model> add_lora(std::unique_ptr<Model> model, const LoraConfig& config, const std::string& where) {
  return std::make_unique<LoraModel>(std::move(model), config, where);
}

const std::vector<LoraAdapter>& lora_adapters(const Model& model) {
  static const std::vector<LoraAdapter> none;
  const auto* adapted = dynamic_cast<const LoraModel*>(&model);
  return adapted == nullptr ? none : adapted->adapters();
}

LoraConfig resolved(const LoraConfig& config, const Model& model) {
  LoraConfig made = config;
  // peft keeps two copies of a tied tensor that is trained: it has to know of both.
  for (const FileTensor& tensor : model.file_tensors()) {
    if (model.tied_head().empty() || tensor.name != model.tied_embedding()) continue;
    if (!model.parameters()[tensor.parameter].trainable) continue;
    for (const std::string& name : {module_of(tensor.name), module_of(model.tied_head())}) {
      const auto& saved = made.modules_to_save;
      const bool known = std::any_of(saved.begin(), saved.end(), [&](const std::string& each) {
        return ModuleNames{{each}, false}.match(name);
      });
      if (!known) made.modules_to_save.push_back(name.substr(name.rfind('.') + 1));
    }
  }
  if (!config.targets.all_linear()) return made;
  std::set<std::string> ends;
  for (const LoraAdapter& adapter : lora_adapters(model))
    ends.insert(adapter.module.name.substr(adapter.module.name.rfind('.') + 1));
  made.targets.names.assign(ends.begin(), ends.end());
  return made;
}

std::string saved_module_name(const std::string& tensor) {
  return std::string(kPrefix) + tensor;
}

}  // namespace convoy
