// The settings of LoRA adapters, and their file: adapter_config.json as peft writes it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace convoy {

// Names of modules: a list (a module's whole name, or its end after a dot) or one regular expression over whole names.
struct ModuleNames {
  std::vector<std::string> names;
  bool regex = false;
  bool empty() const { return names.empty(); }
  bool all_linear() const { return !regex && names.size() == 1 && names[0] == "all-linear"; }
  // peft's rule. Throws a usage error on a malformed regular expression.
  bool match(const std::string& module) const;
};

struct LoraConfig {
  std::int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;
  bool rslora = false;    // scale by alpha/√rank instead of alpha/rank (Kalajdzievski, 2023)
  bool gaussian = false;  // A starts as N(0, 1/rank²), not uniform in ±1/√in
  ModuleNames targets{{"all-linear"}, false};
  ModuleNames exclude;
  std::vector<std::int64_t> layers;          // only in these transformer blocks; empty: in all
  std::vector<std::string> layers_pattern;   // what a block's list is called; empty: any name
  std::vector<std::string> modules_to_save;  // trained whole, and saved with the adapters
  // Other ranks and alphas for modules whose name ends with a match of the expression; the first that matches counts.
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;

  std::int64_t rank_of(const std::string& module) const;
  double scale_of(const std::string& module) const;
  // Whether `targets`, `exclude` and `layers` choose the module. all-linear chooses every one.
  bool chooses(const std::string& module) const;
};

// Throws a usage error that names the key and what to do, for settings that are not supported (DoRA, biases, …).
LoraConfig read_lora_config(const Json& config, const std::string& where);
// The file's content; `base_model` is the folder of the model that the adapters belong to.
Json lora_config_json(const LoraConfig& config, const std::string& base_model, bool fan_in_fan_out);

}  // namespace convoy
