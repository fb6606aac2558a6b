// Models with LoRA adapters beside their linear layers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/lora_config.h"
#include "models/model.h"

namespace convoy {

// A linear layer by the name of its module in Hugging Face's model. Several may be one product here.
struct LinearModule {
  std::string name;           // "model.layers.0.self_attn.q_proj"
  std::size_t parameter = 0;  // its weight
  std::int64_t first_row = 0;
  std::int64_t in = 0, out = 0;
  bool transposed = false;  // the weight is [in, out]
  bool head = false;        // gives the logits
};
// Found in the model's graph, in module order.
std::vector<LinearModule> linear_modules(const Model& model);

// One adapter: y += scale·B·A·dropout(x) beside a linear layer.
struct LoraAdapter {
  LinearModule module;
  std::size_t a = 0, b = 0;  // parameters [r, in] and [out, r]
  double scale = 1;
};

// The model with adapters: its own weights are frozen, but for modules_to_save; the adapters' weights are parameters
// after them, named as peft names them. Errors name `where`: modules that do not exist or cannot have adapters.
std::unique_ptr<Model> add_lora(std::unique_ptr<Model> model, const LoraConfig& config, const std::string& where);

// The adapters of a model that add_lora made; none for others.
const std::vector<LoraAdapter>& lora_adapters(const Model& model);
// `config` as peft writes it: all-linear spelled out as the modules' last names, both names of a tied tensor saved.
LoraConfig resolved(const LoraConfig& config, const Model& model);
// The name in an adapter's file of a weight of the model itself (modules_to_save).
std::string saved_module_name(const std::string& tensor);

}  // namespace convoy
