#include "config/deepspeed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/suggest.h"
#include "config/deepspeed_json.h"
#include "config/deepspeed_keys.h"
#include "config/value.h"

namespace convoy {
namespace {

using Verdict = DeepSpeedKey::Verdict;

bool is_auto(const ConfigNode& node) {
  return node.kind == ConfigNode::Kind::kScalar && node.text == "auto";
}
bool is_true(const ConfigNode& node) {
  return node.kind == ConfigNode::Kind::kScalar && parse_bool(node.text).value_or(false);
}
// A switch that is off, or a section whose `enabled` is not on.
bool is_switched_off(const ConfigNode& node) {
  if (node.kind != ConfigNode::Kind::kMap) return is_off(node);
  return node.entries.empty();
}

class Translator {
 public:
  explicit Translator(std::string name) : name_(std::move(name)) {}

  DeepSpeedSettings translate(const ConfigNode& root) {
    if (root.kind != ConfigNode::Kind::kMap) throw usage_error("a DeepSpeed configuration is a map of keys").at(name_);
    for (const ConfigEntry& entry : root.entries) top_level(entry);
    finish();
    return std::move(made_);
  }

 private:
  std::string at(const ConfigNode& node) const {
    return node.line > 0 ? fmt::format("{}:{}", name_, node.line) : name_;
  }

  // --- walking ---------------------------------------------------------------------------------------------------

  void top_level(const ConfigEntry& entry) {
    std::string key = entry.key == "bfloat16" ? "bf16" : entry.key;
    const ConfigNode& value = entry.value;
    if (key == "zero_optimization" && value.kind == ConfigNode::Kind::kScalar) {
      give("zero_stage", ConfigNode::scalar(is_true(value) ? "1" : "0", false, value.line), key);
      made_.notes.push_back(fmt::format("zero_optimization: {} ({}) is an old form of stage {}", value.text, at(value),
                                        is_true(value) ? 1 : 0));
      return;
    }
    if (key == "scheduler" || key == "optimizer") return walk_named(key, value);
    if (const DeepSpeedKey* known = find(key)) return use(*known, key, value);
    if (!is_section(key)) {
      const std::string nearest = did_you_mean(key, names_under(""));
      // DeepSpeed passes over unknown sections, and so keeps silent about a misspelt one.
      (nearest.empty() ? made_.notes : made_.warnings)
          .push_back(fmt::format("no effect: `{}` ({}) is no key of DeepSpeed's{}", entry.key, at(value), nearest));
      return;
    }
    walk(key, value);
  }

  void walk(const std::string& section, const ConfigNode& node) {
    if (is_auto(node)) return;
    if (node.kind == ConfigNode::Kind::kNull) return;
    if (node.kind != ConfigNode::Kind::kMap) {
      // `"compile": true` and the like: a section given as one value.
      if (const DeepSpeedKey* any = find(section + ".*"); any != nullptr && !is_section(section + ".x"))
        return use(*any, section, node);
      throw usage_error(fmt::format("`{}` is a section of keys in DeepSpeed", section))
          .at(at(node))
          .mend(fmt::format("give it as {{…}}, with the keys {}", fmt::join(names_under(section), ", ")));
    }
    // Of a section that is switched off, only that is of interest.
    const bool off = std::any_of(node.entries.begin(), node.entries.end(), [](const ConfigEntry& entry) {
      return entry.key == "enabled" && is_off(entry.value);
    });
    for (const ConfigEntry& entry : node.entries) {
      const std::string path = section + "." + entry.key;
      if (const DeepSpeedKey* key = find_with_alias(section, entry.key)) {
        if (!off || key->verdict != Verdict::kNoted) use(*key, path, entry.value);
      } else if (is_section(path)) {
        walk(path, entry.value);
      } else if (const DeepSpeedKey* any = find(section + ".*")) {
        if (!off) use(*any, path, entry.value);
      } else {
        throw usage_error(
            fmt::format("`{}`: unknown key '{}'{}", section, entry.key, did_you_mean(entry.key, names_under(section))))
            .at(at(entry.value))
            .mend("DeepSpeed refuses it too (\"Extra inputs are not permitted\"); docs/deepspeed.md lists the keys");
      }
    }
  }

  // optimizer and scheduler: type and params.
  void walk_named(const std::string& section, const ConfigNode& node) {
    if (is_auto(node) || node.kind == ConfigNode::Kind::kNull) return;
    if (node.kind != ConfigNode::Kind::kMap)
      throw usage_error(fmt::format("`{}` is a section with `type` and `params`", section)).at(at(node));
    for (const ConfigEntry& entry : node.entries) {
      const std::string path = section + "." + entry.key;
      if (section == "scheduler" && entry.key == "params") {
        scheduler_params(entry.value);
      } else if (section == "optimizer" && entry.key == "params") {
        walk("optimizer.params", entry.value);
      } else if (const DeepSpeedKey* key = find(path)) {
        use(*key, path, entry.value);
      } else {
        throw usage_error(
            fmt::format("`{}`: unknown key '{}'{}", section, entry.key, did_you_mean(entry.key, names_under(section))))
            .at(at(entry.value));
      }
    }
  }

  static const DeepSpeedKey* find(const std::string& path) {
    for (const DeepSpeedKey& key : deepspeed_keys()) {
      if (path == key.path) return &key;
    }
    return nullptr;
  }
  // zero_optimization's keys are known with and without "stage3_".
  static const DeepSpeedKey* find_with_alias(const std::string& section, const std::string& name) {
    if (const DeepSpeedKey* key = find(section + "." + name)) return key;
    if (section != "zero_optimization") return nullptr;
    return find(section + ".stage3_" + name);
  }
  static bool is_section(const std::string& path) {
    const std::string prefix = path + ".";
    return std::any_of(deepspeed_keys().begin(), deepspeed_keys().end(),
                       [&](const DeepSpeedKey& key) { return std::string(key.path).starts_with(prefix); });
  }
  static std::vector<std::string> names_under(const std::string& section) {
    std::set<std::string> names;
    const std::string prefix = section.empty() ? "" : section + ".";
    for (const DeepSpeedKey& key : deepspeed_keys()) {
      const std::string path = key.path;
      if (!path.starts_with(prefix)) continue;
      const std::string rest = path.substr(prefix.size());
      const std::string name = rest.substr(0, rest.find('.'));
      if (name != "*") names.insert(name);
    }
    return {names.begin(), names.end()};
  }

  // --- keys --------------------------------------------------------------------------------------------------------

  void use(const DeepSpeedKey& key, const std::string& path, const ConfigNode& value) {
    if (is_auto(value)) {
      if (path == "gradient_clipping") clips_ = true;
      if (path == "train_micro_batch_size_per_gpu" || path == "gradient_accumulation_steps")
        made_.filled.emplace_back(key.target);
      return;
    }
    if (path.find("allgather_bucket_size") != std::string::npos && std::fmod(number(path, value), 2) != 0)
      throw usage_error(fmt::format("`{}` must be even", path)).at(at(value)).mend("DeepSpeed refuses an odd one too");
    if (path.find(".cpu_offload") != std::string::npos) old_offload_ = path;
    if (path.find(".offload_") != std::string::npos) new_offload_ = path.substr(0, path.rfind('.'));
    switch (key.verdict) {
      case Verdict::kKey:
        if (value.kind == ConfigNode::Kind::kNull) return;  // DeepSpeed's default
        if (path == "fp16.enabled") fp16_ = is_true(value);
        if (path == "bf16.enabled" || path == "bfloat16.enabled") bf16_ = is_true(value);
        if (path == "zero_optimization.stage") stage_ = value.text;
        if (path == "gradient_clipping") clips_ = true;
        return give(key.target, value, path);
      case Verdict::kHandled:
        return handle(key.path, path, value);
      case Verdict::kNoted:
        if (value.kind == ConfigNode::Kind::kNull) return;
        made_.notes.push_back(fmt::format("no effect: `{}` ({}): {}", path, at(value), key.text));
        return;
      case Verdict::kRefused:
        if (is_switched_off(value)) return;
        throw refused(path, value, key.text);
    }
  }

  Error refused(const std::string& path, const ConfigNode& value, const std::string& remedy) const {
    return usage_error(fmt::format("`{}` of DeepSpeed is not supported", path)).at(at(value)).mend(remedy);
  }

  void give(const std::string& target, ConfigNode value, const std::string& path) {
    const Key* key = find_key(target);
    check(key != nullptr, "DeepSpeed's table names a key that does not exist");
    const bool number = key->kind == Key::Kind::kInteger || key->kind == Key::Kind::kReal;
    if (number && value.quoted) {
      made_.notes.push_back(fmt::format("`{}` ({}) is text; it is read as a number", path, at(value)));
      value.quoted = false;
    }
    std::erase_if(made_.given, [&](const Given& earlier) { return earlier.key == key; });
    made_.given.push_back({key, path, value, at(value)});
  }
  void give_text(const std::string& target, const std::string& text, const ConfigNode& from, const std::string& path) {
    give(target, ConfigNode::scalar(text, false, from.line), path);
  }

  double number(const std::string& path, const ConfigNode& value) const {
    const auto parsed = value.kind == ConfigNode::Kind::kScalar ? parse_real(value.text) : std::nullopt;
    if (!parsed) throw usage_error(fmt::format("`{}` must be a number", path)).at(at(value));
    return *parsed;
  }

  void handle(const std::string& key, const std::string& path, const ConfigNode& value) {
    if (key == "optimizer.type") {
      optimizer_type_ = lower(value.text);
      optimizer_node_ = value;
    } else if (key == "optimizer.params.betas") {
      betas(path, value);
    } else if (key == "optimizer.params.weight_decay") {
      give("weight_decay", value, path);
      give_text("decay_bias_norm", "true", value, path);
    } else if (key == "optimizer.params.adam_w_mode") {
      adam_w_mode_ = is_true(value);
    } else if (key == "optimizer.params.bias_correction") {
      if (!is_true(value)) throw refused(path + ": false", value, "leave it out: moments are bias-corrected");
    } else if (key.starts_with("activation_checkpointing.")) {
      if (!is_off(value)) recompute(path, value);
      if (key.ends_with(".cpu_checkpointing") && is_true(value)) give_text("offload_activations", "cpu", value, path);
    } else if (key == "pipeline.activation_checkpoint_interval") {
      if (number(path, value) > 0) recompute(path, value);
    } else if (key == "pipeline.stages") {
      if (number(path, value) > 1) pipeline_stages_ = value;
    } else if (key == "zero_optimization.cpu_offload") {
      if (is_true(value)) give_text("offload_optimizer", "cpu", value, path);
    } else if (key.starts_with("zero_optimization.cpu_offload_param")) {
      if (is_true(value)) give_text("offload_param", "cpu", value, path);
    } else if (key.starts_with("tensorboard.")) {
      tensorboard(key, value);
    } else {
      require_plain(key, path, value);
    }
  }

  // Settings that may only have the value that Convoy has anyway.
  void require_plain(const std::string& key, const std::string& path, const ConfigNode& value) {
    if (value.kind == ConfigNode::Kind::kNull) return;
    if (key == "gradient_allreduce_op") {
      if (lower(value.text) != "mean") throw refused(path + ": " + value.text, value, "use mean");
    } else if (key == "sequence_parallel_size" || key == "tensor_parallel.autotp_size") {
      if (number(path, value) > 1) throw refused(path + " above 1", value, "shard weights with ZeRO stage 3 instead");
    } else if (key == "zero_optimization.offload_optimizer.ratio") {
      if (number(path, value) != 1)
        throw refused(path + " below 1", value, "set it to 1.0: all of the state is offloaded");
    } else {  // communication_data_type, data_types.grad_accum_dtype
      const std::string type = lower(value.text);
      if (type != "fp32" && type != "fp16" && type != "bf16") {
        throw usage_error(
            fmt::format("Invalid {}. Supported data types: ['fp16', 'bf16', 'fp32']. Got: {}", path, value.text))
            .at(at(value));
      }
      if (key == "communication_data_type") {
        give_text("gradient_compression", type == "fp32" ? "none" : type, value, path);
      } else {
        give_text("gradient_dtype", type == "fp32" ? "f32" : (type == "fp16" ? "f16" : "bf16"), value, path);
      }
    }
  }

  void recompute(const std::string& path, const ConfigNode& value) { give_text("recompute", "full", value, path); }

  void betas(const std::string& path, const ConfigNode& value) {
    if (value.kind != ConfigNode::Kind::kList || value.items.size() != 2)
      throw usage_error(fmt::format("`{}` is a list of two numbers", path)).at(at(value)).mend("such as [0.9, 0.999]");
    give("adam_beta1", value.items[0], path);
    give("adam_beta2", value.items[1], path);
  }

  void tensorboard(const std::string& key, const ConfigNode& value) {
    if (key == "tensorboard.enabled") tensorboard_ = is_true(value);
    if (key == "tensorboard.output_path") tensorboard_path_ = value.text;
    if (key == "tensorboard.job_name") tensorboard_job_ = value.text;
    tensorboard_line_ = value.line;
  }

  void scheduler_params(const ConfigNode& node) {
    if (is_auto(node) || node.kind == ConfigNode::Kind::kNull) return;
    if (node.kind != ConfigNode::Kind::kMap) throw usage_error("`scheduler.params` is a section").at(at(node));
    ConfigNode params;
    params.kind = ConfigNode::Kind::kMap;
    params.line = node.line;
    for (ConfigEntry entry : node.entries) {
      if (is_auto(entry.value)) {
        // The learning rate, the steps of the run and its warm-up are the schedules' own defaults.
        // The run's own warm-up, also where it is none (then DeepSpeed's least, not its default of 1000).
        if (entry.key == "warmup_num_steps")
          params.entries.push_back({entry.key, ConfigNode::scalar("-1", false, node.line)});
        if (entry.key == "warmup_min_lr")
          params.entries.push_back({entry.key, ConfigNode::scalar("0", false, node.line)});
        continue;
      }
      if (entry.value.quoted && parse_real(entry.value.text)) entry.value.quoted = false;
      params.entries.push_back(std::move(entry));
    }
    give("lr_scheduler_kwargs", params, "scheduler.params");
  }

  // --- what needs more than one key ---------------------------------------------------------------------------------

  void finish() {
    if (fp16_.value_or(false) && bf16_.value_or(false))
      throw usage_error("bfloat16 and fp16 modes cannot be simultaneously enabled").at(name_).mend("keep one of them");
    if (!old_offload_.empty() && !new_offload_.empty()) {
      throw usage_error(fmt::format("Cannot provide deprecated parameter '{}' and replacing parameter '{}' together",
                                    old_offload_, new_offload_))
          .at(name_)
          .mend("keep the second");
    }
    finish_optimizer();
    if (pipeline_stages_) {
      const bool beside_zero = stage_ == "2" || stage_ == "3";
      if (!beside_zero)
        throw refused("pipeline.stages", *pipeline_stages_,
                      "leave it out: there is no pipeline parallelism yet; ZeRO stage 3 shards the weights");
      made_.notes.push_back(
          fmt::format("no effect: `pipeline.stages` ({}): ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism "
                      "in DeepSpeed",
                      at(*pipeline_stages_)));
    }
    if (tensorboard_) {
      ConfigNode list;
      list.kind = ConfigNode::Kind::kList;
      list.line = tensorboard_line_;
      list.items.push_back(ConfigNode::scalar("tensorboard", false, tensorboard_line_));
      give("report_to", list, "tensorboard.enabled");
      give("logging_dir",
           ConfigNode::scalar((tensorboard_path_.empty() ? "." : tensorboard_path_) + "/" + tensorboard_job_, true,
                              tensorboard_line_),
           "tensorboard.output_path");
    }
    if (!clips_) {
      made_.notes.push_back(fmt::format(
          "{} has no gradient_clipping: max_grad_norm holds (DeepSpeed's own default was 0 and is 1.0 now)", name_));
    }
  }

  void finish_optimizer() {
    if (!optimizer_type_) return;
    const std::string& type = *optimizer_type_;
    std::string word;
    if (type == "adam") {
      word = adam_w_mode_ ? "adamw" : "adam";
    } else if (type == "adamw" || type == "sgd" || type == "lion" || type == "adagrad") {
      word = type;
    } else {
      static const std::vector<std::string> known = {"adam", "adamw", "sgd", "lion", "adagrad"};
      throw refused("optimizer.type: " + optimizer_node_.text, optimizer_node_,
                    "use one of Adam, AdamW, SGD, Lion, Adagrad" + did_you_mean(type, known));
    }
    give_text("optim", word, optimizer_node_, "optimizer.type");
  }

  const std::string name_;
  DeepSpeedSettings made_;
  std::optional<bool> fp16_, bf16_;
  std::string stage_, old_offload_, new_offload_;
  bool clips_ = false;
  std::optional<std::string> optimizer_type_;
  ConfigNode optimizer_node_;
  bool adam_w_mode_ = true;
  std::optional<ConfigNode> pipeline_stages_;
  bool tensorboard_ = false;
  std::string tensorboard_path_, tensorboard_job_ = "DeepSpeedJobName";
  int tensorboard_line_ = 0;
};

}  // namespace

DeepSpeedSettings read_deepspeed(const ConfigNode& config, const std::string& where) {
  if (config.kind == ConfigNode::Kind::kMap) return Translator(where.substr(0, where.rfind(':'))).translate(config);
  std::string name;
  const std::string text = read_deepspeed_text(config.text, &name);
  return Translator(name).translate(parse_deepspeed_json(text, name));
}

}  // namespace convoy
