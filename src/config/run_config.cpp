#include "config/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/files.h"
#include "base/suggest.h"
#include "config/deepspeed.h"
#include "config/given.h"
#include "config/value.h"

namespace convoy {
namespace {

void give(RunConfig& config, const std::string& key, const SettingValue& value, const std::string& source) {
  const Key* known = find_key(key);
  check(known != nullptr && known->set != nullptr, "a derived key is unknown");
  known->set(config, value);
  config.sources[key] = source;
}

// The later of two flags for one key counts.
std::vector<Given> merge(std::vector<Given> file, std::vector<Given> flags, std::vector<std::string>& notes) {
  std::vector<Given> merged;
  for (Given& flag : flags) {
    const auto same = [&](const Given& given) { return given.key == flag.key; };
    const auto earlier = std::find_if(merged.begin(), merged.end(), same);
    if (earlier == merged.end()) {
      merged.push_back(std::move(flag));
      continue;
    }
    notes.push_back(fmt::format("`{}` is given twice on the command line; the last one counts", flag.key->name));
    *earlier = std::move(flag);
  }
  const std::size_t flag_count = merged.size();
  for (Given& given : file) {
    const auto overridden = std::find_if(merged.begin(), merged.begin() + static_cast<std::ptrdiff_t>(flag_count),
                                         [&](const Given& flag) { return flag.key == given.key; });
    if (overridden == merged.begin() + static_cast<std::ptrdiff_t>(flag_count)) merged.push_back(std::move(given));
  }
  return merged;
}

// Keys without effect, listed once per reason.
class EffectNotes {
 public:
  void add(const Given& given) {
    const std::string text = fmt::format("`{}` ({})", given.written, given.where);
    for (auto& [reason, keys] : groups_) {
      if (reason == given.key->help) {
        keys += ", " + text;
        return;
      }
    }
    groups_.emplace_back(given.key->help, text);
  }
  void append_to(std::vector<std::string>& notes) const {
    for (const auto& [reason, keys] : groups_) notes.push_back(fmt::format("no effect: {}: {}", keys, reason));
  }

 private:
  std::vector<std::pair<std::string, std::string>> groups_;
};

void note_old_name(const Given& given, std::vector<std::string>& notes) {
  for (const Key::Alias& alias : given.key->aliases) {
    if (alias.outdated && alias.name == given.written)
      notes.push_back(fmt::format("`{}` ({}) is an old name of `{}`", given.written, given.where, given.key->name));
  }
}

void refuse(const Given& given) {
  if (is_off(given.node)) return;
  throw usage_error(fmt::format("`{}` is not supported", given.written)).at(given.where).mend(given.key->help);
}

// none, all and the reporters' names become what is built in.
void resolve_reporters(RunConfig& config) {
  static const std::vector<std::string> known = {"tensorboard", "all", "none"};
  static const std::vector<std::string> elsewhere = {"azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub",
                                                     "dvclive",  "flyte",   "mlflow",     "neptune",  "swanlab",
                                                     "trackio",  "wandb",   "csv"};
  bool tensorboard = false;
  for (const std::string& name : config.report_to) {
    const std::string word = lower(name);
    if (word == "tensorboard" || word == "all") {
      tensorboard = true;
    } else if (std::find(elsewhere.begin(), elsewhere.end(), word) != elsewhere.end()) {
      config.notes.push_back(
          fmt::format("no effect: `report_to` ({}): {} is not built in; log_file has every log as JSON",
                      config.source_of("report_to"), word));
    } else if (word != "none" && word != "no" && word != "false") {
      throw usage_error(
          fmt::format("`report_to` must be one of tensorboard, all, none, not '{}'{}", name, did_you_mean(word, known)))
          .at(config.source_of("report_to"));
    }
  }
  config.report_to.clear();
  if (tensorboard) config.report_to.emplace_back("tensorboard");
}

Error contradiction(const RunConfig& config, const std::string& key, const std::string& other,
                    const std::string& what) {
  return usage_error(what)
      .at(fmt::format("{}, {}", config.source_of(key), config.source_of(other)))
      .mend("keep one of them");
}

// It stands beside bf16: what is not in 8 bits has float32's range without a loss scale.
void resolve_fp8(RunConfig& config) {
  const bool other = config.dtype && *config.dtype != DType::kBF16;
  if (other || (config.bf16 && !*config.bf16)) {
    const std::string key = !other ? "bf16" : config.fp16.value_or(false) ? "fp16" : "dtype";
    throw usage_error(
        fmt::format("`fp8: true` and this `{}` contradict each other: what is not in 8 bits is in bf16", key))
        .at(fmt::format("{}, {}", config.source_of("fp8"), config.source_of(key)))
        .mend(fmt::format("leave `{}` out, or fp8", key));
  }
  if (!config.dtype) give(config, "dtype", static_cast<std::int64_t>(DType::kBF16), "fp8, " + config.source_of("fp8"));
}

void resolve_precision(RunConfig& config) {
  const bool bf16 = config.bf16.value_or(false);
  if (bf16 && config.fp16.value_or(false))
    throw contradiction(config, "bf16", "fp16", "At most one of fp16 and bf16 can be True, but not both");
  const bool fp16 = config.fp16.value_or(false);
  if (fp16 && config.dtype && *config.dtype != DType::kF16)
    throw contradiction(config, "fp16", "dtype", "`fp16: true` and another `dtype` contradict each other");
  if (config.fp16 && !fp16 && config.dtype == DType::kF16)
    throw contradiction(config, "fp16", "dtype", "`fp16: false` and `dtype: f16` contradict each other");
  if (fp16 && !config.dtype)
    give(config, "dtype", static_cast<std::int64_t>(DType::kF16), "fp16, " + config.source_of("fp16"));
  if (bf16 && config.dtype && *config.dtype != DType::kBF16)
    throw contradiction(config, "bf16", "dtype", "`bf16: true` and another `dtype` contradict each other");
  if (config.bf16 && !bf16 && config.dtype == DType::kBF16)
    throw contradiction(config, "bf16", "dtype", "`bf16: false` and `dtype: bf16` contradict each other");
  if (bf16 && !config.dtype)
    give(config, "dtype", static_cast<std::int64_t>(DType::kBF16), "bf16, " + config.source_of("bf16"));
  if (config.fp8) resolve_fp8(config);
}

void resolve_recompute(RunConfig& config) {
  if (!config.gradient_checkpointing) return;
  const bool given = config.sources.count("recompute") > 0;
  const bool on = *config.gradient_checkpointing;
  if (given && on != (config.recompute != RecomputeSetting::kNone))
    throw contradiction(config, "gradient_checkpointing", "recompute",
                        fmt::format("`gradient_checkpointing: {}` and `recompute: {}` contradict each other", on,
                                    on                                            ? "none"
                                    : config.recompute == RecomputeSetting::kFull ? "full"
                                    : config.recompute == RecomputeSetting::kFit  ? "fit"
                                                                                  : "selective"));
  if (on && !given)
    give(config, "recompute", static_cast<std::int64_t>(RecomputeSetting::kFull),
         "gradient_checkpointing, " + config.source_of("gradient_checkpointing"));
}

bool strict_deepspeed(const std::vector<Given>& given) {
  return std::any_of(given.begin(), given.end(),
                     [](const Given& each) { return each.key->name == "strict_ds" && !is_off(each.node); });
}

// Hugging Face compares these with TrainingArguments' defaults too.
std::string strict_mismatch(const Given& given) {
  static const RunConfig defaults;
  static const std::vector<std::string> compared = {"learning_rate",
                                                    "adam_beta1",
                                                    "adam_beta2",
                                                    "adam_epsilon",
                                                    "weight_decay",
                                                    "max_grad_norm",
                                                    "per_device_train_batch_size",
                                                    "gradient_accumulation_steps"};
  if (std::find(compared.begin(), compared.end(), given.key->name) == compared.end()) return "";
  const SettingValue standard = given.key->get(defaults);
  if (convert_value(given) == standard) return "";
  return fmt::format("\n- ds {}={} vs hf {}={}", given.written, value_text(*given.key, convert_value(given)),
                     given.key->name, value_text(*given.key, standard));
}

// The schedule's own rate and warm-up count more than the run's, under other names.
std::vector<std::pair<const Given*, std::string>> schedule_mismatches(const std::vector<Given>& all,
                                                                      const std::vector<Given>& read) {
  static const std::vector<std::pair<std::string, std::string>> pairs = {
      {"warmup_num_steps", "warmup_steps"}, {"warmup_num_steps", "warmup_ratio"}, {"warmup_max_lr", "learning_rate"}};
  std::vector<std::pair<const Given*, std::string>> found;
  for (const Given& given : read) {
    if (given.key->name != "lr_scheduler_kwargs") continue;
    for (const ConfigEntry& entry : given.node.entries) {
      const std::optional<double> value = parse_real(entry.value.text);
      if (!value || *value < 0) continue;  // -1: the run's own, for "auto"
      for (const auto& [parameter, key] : pairs) {
        if (entry.key != parameter) continue;
        for (const Given& beside : all) {
          if (beside.key->name != key) continue;
          const std::optional<double> other = parse_real(beside.node.text);
          if (!other || *other == *value || (*other == 0 && key != "learning_rate")) continue;
          found.emplace_back(&beside, fmt::format("ds scheduler.params.{}={} vs hf {}={}", parameter, entry.value.text,
                                                  beside.written, beside.node.text));
        }
      }
    }
  }
  return found;
}

// A value in the DeepSpeed configuration counts more than one beside it. `dtype` gives way to fp16 and bf16.
void merge_deepspeed(std::vector<Given>& all, RunConfig& config) {
  const auto file =
      std::find_if(all.begin(), all.end(), [](const Given& each) { return each.key->name == "deepspeed"; });
  if (file == all.end() || is_off(file->node)) return;
  DeepSpeedSettings read = read_deepspeed(file->node, file->where);
  for (std::string& warning : read.warnings) config.warnings.push_back(std::move(warning));
  const bool strict = strict_deepspeed(all);
  std::string mismatches;
  const auto explicit_key = [&](const std::string& name) {
    return std::any_of(all.begin(), all.end(), [&](const Given& each) { return each.key->name == name; });
  };
  // The JSON's number decays everything, as DeepSpeed does, unless the user says otherwise.
  if (explicit_key("decay_bias_norm"))
    std::erase_if(read.given, [](const Given& each) { return each.key->name == "decay_bias_norm"; });
  for (const std::string& name : read.filled) {
    if (explicit_key(name)) continue;
    static const RunConfig defaults;
    const Key* key = find_key(name);
    all.push_back(
        {key, name, ConfigNode::scalar(value_text(*key, key->get(defaults)), false, 0), "default, for \"auto\""});
  }
  for (const auto& [beside, what] : schedule_mismatches(all, read.given)) {
    if (strict) mismatches += fmt::format("\n- {}", what);
    config.warnings.push_back(
        fmt::format("`scheduler.params` counts, not `{}` ({}): {}", beside->written, beside->where, what));
  }
  for (Given& given : read.given) {
    if (strict && !explicit_key(given.key->name)) mismatches += strict_mismatch(given);
    const bool precision = (given.key->name == "fp16" || given.key->name == "bf16") && !is_off(given.node);
    for (auto beside = all.begin(); beside != all.end();) {
      const bool same_key = beside->key == given.key;
      if (!same_key && !(precision && beside->key->name == "dtype")) {
        ++beside;
        continue;
      }
      const bool no_value = std::holds_alternative<std::monostate>(convert_value(*beside));
      if (same_key && !no_value && convert_value(*beside) != convert_value(given)) {
        const std::string what =
            fmt::format("ds {}={} vs hf {}={}", given.written, value_text(*given.key, convert_value(given)),
                        beside->written, value_text(*beside->key, convert_value(*beside)));
        if (strict) mismatches += fmt::format("\n- {}", what);
        config.warnings.push_back(fmt::format("`{}` ({}) counts, not `{}` ({}): {}", given.written, given.where,
                                              beside->written, beside->where, what));
      } else if (!same_key && !no_value) {
        config.warnings.push_back(
            fmt::format("`{}` ({}) counts, not `{}` ({})", given.written, given.where, beside->written, beside->where));
      }
      beside = all.erase(beside);
    }
  }
  if (!mismatches.empty()) {
    throw usage_error("Please correct the following DeepSpeed config values that mismatch TrainingArguments values:" +
                      mismatches)
        .at("strict_ds")
        .mend("The easiest method is to set these DeepSpeed config values to 'auto'.");
  }
  std::move(read.given.begin(), read.given.end(), std::back_inserter(all));
  std::move(read.notes.begin(), read.notes.end(), std::back_inserter(config.notes));
}

RunConfig build(std::vector<Given> file, std::vector<Given> flags) {
  RunConfig config;
  EffectNotes effects;
  std::vector<Given> all = merge(std::move(file), std::move(flags), config.notes);
  merge_deepspeed(all, config);
  for (const Given& given : all) {
    if (given.key->effect == Key::Effect::kRefused) {
      refuse(given);
      continue;
    }
    const SettingValue value = convert_value(given);
    note_old_name(given, config.notes);
    if (given.key->effect == Key::Effect::kNone) {
      if (!is_off(given.node)) effects.add(given);
    } else {
      given.key->set(config, value);
      config.sources[given.key->name] = given.where;
    }
  }
  effects.append_to(config.notes);
  resolve_reporters(config);
  resolve_precision(config);
  resolve_recompute(config);
  check_run_config(config);
  for (std::string& note : inactive_keys(config)) config.notes.push_back(std::move(note));
  return config;
}

std::vector<Given> read_text(const std::string& text, const std::string& name) {
  const bool json = name.size() >= 5 && lower(name.substr(name.size() - 5)) == ".json";
  return given_by_file(json ? parse_json_tree(text, name) : parse_yaml(text, name), name);
}

std::vector<Given> read_run_file(const std::string& path) {
  std::error_code failure;
  if (!std::filesystem::exists(path, failure))
    throw usage_error(fmt::format("there is no run file '{}'", path))
        .at("command line")
        .mend("give a YAML or JSON file, and flags as `--key value`");
  return read_text(read_file(path), path);
}

}  // namespace

std::string RunConfig::source_of(const std::string& key) const {
  const auto found = sources.find(key);
  return found == sources.end() ? "default" : found->second;
}

RunConfig parse_run_config(const std::vector<std::string>& args) {
  CommandLine line = parse_flags(args);
  std::vector<Given> file;
  if (!line.run_file.empty()) file = read_run_file(line.run_file);
  return build(std::move(file), std::move(line.flags));
}

RunConfig parse_run_text(const std::string& text, const std::string& name) {
  return build(read_text(text, name), {});
}

}  // namespace convoy
