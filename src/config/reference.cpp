// The texts made from the table of keys: help, the reference page, and a run's resolved settings.
#include <fmt/format.h>

#include <algorithm>

#include "config/given.h"
#include "config/value.h"

namespace convoy {
namespace {

std::string default_text(const Key& key) {
  static const RunConfig defaults;
  const SettingValue value = key.get(defaults);
  return std::holds_alternative<std::monostate>(value) ? "" : value_text(key, value);
}

std::string default_or_meaning(const Key& key) {
  const std::string value = default_text(key);
  return value.empty() ? key.unset : value;
}

// `|` would end a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string alias_text(const Key& key) {
  std::string text;
  for (const Key::Alias& alias : key.aliases) text += (text.empty() ? "" : ", ") + std::string("`") + alias.name + "`";
  return text;
}

std::string used_table(const Section& section) {
  std::string out = "| key | accepts | default | meaning |\n|---|---|---|---|\n";
  for (const Key& key : section.keys) {
    const std::string value = default_text(key);
    std::string meaning = key.help;
    if (!key.aliases.empty()) meaning += fmt::format(" Also {}.", alias_text(key));
    out += fmt::format("| `{}` | {} | {} | {} |\n", key.name, cell(accepted_values(key)),
                       value.empty() ? cell(key.unset) : fmt::format("`{}`", cell(value)), cell(meaning));
  }
  return out;
}

// Keys with the same text share a row.
std::string grouped_table(const Section& section, const std::string& heading) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Key& key : section.keys) {
    const std::string name = "`" + key.name + "`";
    bool known = false;
    for (auto& [help, names] : rows) {
      if (help != key.help) continue;
      names += ", " + name;
      known = true;
    }
    if (!known) rows.emplace_back(key.help, name);
  }
  std::string out = fmt::format("| keys | {} |\n|---|---|\n", heading);
  for (const auto& [help, names] : rows) out += fmt::format("| {} | {} |\n", names, cell(help));
  return out;
}

std::string wrap(const std::string& text, std::size_t indent, std::size_t width) {
  std::string out, line;
  const auto flush = [&] {
    out += std::string(indent, ' ') + line + "\n";
    line.clear();
  };
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t space = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, space - at);
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) flush();
    line += (line.empty() ? "" : " ") + word;
    at = space + 1;
  }
  if (!line.empty()) flush();
  return out;
}

constexpr const char* kIntroduction = R"(# Configuration

A run is one file, YAML or JSON, with the keys below. Every key is also a command-line flag, and a flag wins over the
file:

```yaml
# run.yaml
model: models/my-model
train_files: data/*.jsonl
seq_length: 1024
per_device_train_batch_size: 4
learning_rate: 2e-5
bf16: true
output_dir: out
```

    convoy train run.yaml --learning_rate 1e-5 --no-bf16

- `--key value` and `--key=value` are the same; `-` and `_` are the same in names.
- Booleans: `--bf16`, `--bf16 false`, `--no-bf16`. Lists: values with spaces between them. Maps: JSON in quotes, such as
  `--lr_scheduler_kwargs '{"min_lr_rate": 0.1}'`. `null` or `None` is no value.
- The run file is the argument that belongs to no flag. Paths are relative to the folder that the command runs in.
- Unknown keys, keys given twice and values out of range are errors that name the line. Keys that are accepted but have
  no effect are listed once, with the reason. YAML's merge key `<<` is refused; aliases work.
- The names and meanings are those of Hugging Face's `TrainingArguments` where those have the key. DeepSpeed's JSON is
  read too (`deepspeed`, see docs/deepspeed.md) and counts more than the run file and the flags.

This page is made from the program's own table of keys; a test compares the two.
)";

}  // namespace

std::string config_help() {
  constexpr std::size_t kWidth = 100;
  std::string out = "Settings, as keys of the run file or as flags:\n";
  for (const Section& section : key_sections()) {
    if (section.keys.front().effect != Key::Effect::kUsed) continue;
    out += fmt::format("\n{}:\n", section.title);
    for (const Key& key : section.keys) {
      const std::string fallback = default_or_meaning(key);
      out += fmt::format("  --{}{}\n", key.name, fallback.empty() ? "" : fmt::format("  [{}]", fallback));
      out += wrap(key.help, 6, kWidth);
      if (key.kind == Key::Kind::kChoice) out += wrap(accepted_values(key), 6, kWidth);
    }
  }
  return out +
         "\nOther TrainingArguments are accepted without effect or refused with what to do instead; see "
         "docs/configuration.md.\n";
}

std::string config_reference() {
  std::string out = kIntroduction;
  for (const Section& section : key_sections()) {
    out += fmt::format("\n## {}\n\n", section.title);
    switch (section.keys.front().effect) {
      case Key::Effect::kUsed:
        out += used_table(section);
        break;
      case Key::Effect::kNone:
        out +=
            "These TrainingArguments may stay in a run file; if one is set, the run says once why it does nothing.\n\n";
        out += grouped_table(section, "why it has no effect");
        break;
      case Key::Effect::kRefused:
        out += "These are errors when they are set.\n\n";
        out += grouped_table(section, "what to do");
        break;
    }
  }
  return out;
}

std::string print_resolved(const RunConfig& config) {
  std::string out;
  for (const Section& section : key_sections()) {
    if (section.keys.front().effect != Key::Effect::kUsed) continue;
    out += fmt::format("{}# {}\n", out.empty() ? "" : "\n", section.title);
    for (const Key& key : section.keys) {
      const std::string line = fmt::format("{}: {}", key.name, value_text(key, key.get(config)));
      std::string source = config.source_of(key.name);
      for (char& c : source) {
        if (static_cast<unsigned char>(c) < 0x20) c = ' ';  // a comment must stay on its line
      }
      out += fmt::format("{:<48}  # {}\n", line, source);
    }
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> shared_settings(const RunConfig& config) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const Section& section : key_sections()) {
    for (const Key& key : section.keys) {
      if (key.effect != Key::Effect::kUsed || key.of_process) continue;
      std::string text = value_text(key, key.get(config));
      // Where a checkpoint lies may differ between hosts, but not whether the run goes on from one.
      if (key.name == "resume_from_checkpoint") text = config.resume_from_checkpoint ? "given" : "not given";
      settings.emplace_back(key.name, std::move(text));
    }
  }
  return settings;
}

}  // namespace convoy
