// convoy config: the questions of `accelerate config`, answered into a run file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "cli/commands.h"
#include "config/config_node.h"
#include "config/run_config.h"
#include "config/value.h"

namespace convoy {
namespace {

struct Answers {
  std::int64_t machines = 1, processes = 1;
  std::string address, port;
  std::string precision = "no";
  std::optional<std::string> deepspeed_file;
  std::optional<std::int64_t> stage, accumulation;
  std::string offload_optimizer = "none", offload_param = "none";
  std::optional<double> clipping;
};

// Asks on stdout and reads lines of stdin; what cannot be is asked again.
class Questions {
 public:
  std::string text(const std::string& question, const std::string& fallback) const {
    return ask(question, fallback, [](const std::string&) { return true; });
  }
  std::int64_t number(const std::string& question, std::int64_t fallback, std::int64_t least, std::int64_t most) const {
    const std::string answer = ask(question, std::to_string(fallback), [&](const std::string& line) {
      const auto value = parse_integer(line);
      return value && *value >= least && *value <= most;
    });
    return *parse_integer(answer);
  }
  double real(const std::string& question, double fallback) const {
    return *parse_real(ask(question, fmt::format("{}", fallback),
                           [](const std::string& line) { return parse_real(line).has_value(); }));
  }
  bool yes(const std::string& question, bool fallback) const {
    const std::string answer = ask(
        question + (fallback ? " [YES/no]" : " [yes/NO]"), fallback ? "yes" : "no",
        [](const std::string& line) { return parse_bool(line).has_value(); }, false);
    return *parse_bool(answer);
  }
  std::string one_of(const std::string& question, const std::vector<std::string>& words) const {
    std::string list;
    for (std::size_t i = 0; i < words.size(); ++i) list += fmt::format("{}{}: {}", i > 0 ? ", " : "", i, words[i]);
    const std::string answer = ask(fmt::format("{} ({})", question, list), words.front(), [&](const std::string& line) {
      const auto index = parse_integer(line);
      return std::find(words.begin(), words.end(), line) != words.end() ||
             (index && *index >= 0 && *index < static_cast<std::int64_t>(words.size()));
    });
    const auto index = parse_integer(answer);
    const bool is_word = std::find(words.begin(), words.end(), answer) != words.end();
    return is_word ? answer : words[static_cast<std::size_t>(*index)];
  }

 private:
  static std::string ask(const std::string& question, const std::string& fallback,
                         const std::function<bool(const std::string&)>& fits, bool show = true) {
    while (true) {
      fmt::print("{}{}: ", question, show ? fmt::format(" [{}]", fallback) : "");
      std::fflush(stdout);
      std::string line;
      if (!std::getline(std::cin, line))
        throw usage_error("the answers ended before the questions").mend("answer all, or use: convoy config --default");
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (line.empty()) line = fallback;
      if (fits(line)) return line;
      fmt::print("'{}' is no answer to this.\n", line);
    }
  }
};

void ask_deepspeed(const Questions& questions, Answers& answers) {
  if (questions.yes("Do you want to specify a json file to a DeepSpeed config?", false)) {
    answers.deepspeed_file =
        questions.text("Please enter the path to the json DeepSpeed config file", "ds_config.json");
    return;
  }
  answers.stage = questions.number("What should be your DeepSpeed's ZeRO optimization stage?", 2, 0, 3);
  answers.offload_optimizer = questions.one_of("Where to offload optimizer states?", {"none", "cpu"});
  if (*answers.stage == 3) answers.offload_param = questions.one_of("Where to offload parameters?", {"none", "cpu"});
  answers.accumulation =
      questions.number("How many gradient accumulation steps you're passing in your script?", 1, 1, 1 << 24);
  if (questions.yes("Do you want to use gradient clipping?", true))
    answers.clipping = questions.real("What is the gradient clipping value?", 1.0);
}

Answers ask_all() {
  const Questions questions;
  Answers answers;
  const std::string type =
      questions.one_of("Which type of machine are you using?", {"No distributed training", "multi-CPU", "multi-GPU"});
  const bool distributed = type != "No distributed training";
  if (distributed) {
    answers.machines = questions.number(
        "How many different machines will you use (use more than 1 for multi-node training)?", 1, 1, 65536);
    if (answers.machines > 1) {
      answers.address = questions.text("What is the IP address of the machine that will host the main process?", "");
      answers.port = questions.text("What is the port you will use to communicate with the main process?", "29500");
    }
  }
  if (questions.yes("Do you want to use DeepSpeed?", false)) ask_deepspeed(questions, answers);
  if (distributed)
    answers.processes =
        questions.number("How many processes in total should be used for distributed training?", 1, 1, 1 << 20);
  if (!answers.deepspeed_file)
    answers.precision = questions.one_of("Do you wish to use mixed precision?", {"no", "fp16", "bf16", "fp8"});
  return answers;
}

// accelerate's HYBRID is what fp8 is here, and its default; how it finds scales has no counterpart.
void check_fp8_format(const ConfigNode& settings, const std::string& path) {
  for (const ConfigEntry& entry : settings.entries) {
    if (entry.key != "fp8_format" || lower(entry.value.text) == "hybrid") continue;
    throw usage_error(fmt::format("fp8_format {} has no counterpart: gradients are E5M2", entry.value.text))
        .at(fmt::format("{}:{}", path, entry.value.line))
        .mend("use fp8_format: HYBRID");
  }
}

// accelerate's own file.
Answers from_accelerate(const std::string& path) {
  const ConfigNode root = parse_yaml(read_file(path), path);
  Answers answers;
  const auto number = [](const ConfigNode& node) { return parse_integer(node.text).value_or(1); };
  for (const ConfigEntry& entry : root.entries) {
    const ConfigNode& value = entry.value;
    if (entry.key == "num_processes") answers.processes = number(value);
    if (entry.key == "num_machines") answers.machines = number(value);
    if (entry.key == "main_process_ip" && value.kind == ConfigNode::Kind::kScalar) answers.address = value.text;
    if (entry.key == "main_process_port" && value.kind == ConfigNode::Kind::kScalar) answers.port = value.text;
    if (entry.key == "mixed_precision") answers.precision = lower(value.text);
    if (entry.key == "fp8_config") check_fp8_format(value, path);
    if ((entry.key == "fsdp_config" || entry.key == "megatron_lm_config") && !value.entries.empty()) {
      throw usage_error(fmt::format("`{}` has no counterpart", entry.key))
          .at(fmt::format("{}:{}", path, value.line))
          .mend("use zero_stage: 3 for full sharding");
    }
    if (entry.key != "deepspeed_config") continue;
    for (const ConfigEntry& inner : value.entries) {
      const std::string& word = inner.value.text;
      if (inner.key == "deepspeed_config_file") answers.deepspeed_file = word;
      if (inner.key == "zero_stage") answers.stage = number(inner.value);
      if (inner.key == "gradient_accumulation_steps" && word != "auto") answers.accumulation = number(inner.value);
      if (inner.key == "gradient_clipping" && word != "auto") answers.clipping = parse_real(word);
      if (inner.key == "offload_optimizer_device") answers.offload_optimizer = lower(word);
      if (inner.key == "offload_param_device") answers.offload_param = lower(word);
    }
  }
  return answers;
}

std::string run_file(const Answers& answers) {
  std::string text =
      "# Settings of the machine and its ranks; add model, train_files and the rest, or give them as flags.\n";
  text += fmt::format("num_processes: {}\n", answers.processes);
  if (answers.deepspeed_file) {
    text += fmt::format("deepspeed: {}\n", *answers.deepspeed_file);
  } else {
    if (answers.stage) text += fmt::format("zero_stage: {}\n", *answers.stage);
    if (answers.offload_optimizer != "none") text += fmt::format("offload_optimizer: {}\n", answers.offload_optimizer);
    if (answers.offload_param != "none") text += fmt::format("offload_param: {}\n", answers.offload_param);
    if (answers.accumulation) text += fmt::format("gradient_accumulation_steps: {}\n", *answers.accumulation);
    if (answers.clipping) text += fmt::format("max_grad_norm: {}\n", *answers.clipping);
    if (answers.precision != "no") text += fmt::format("{}: true\n", answers.precision);
  }
  if (answers.machines > 1) {
    text += fmt::format(
        "# {} machines: write their names into a file (\"NAME slots={}\" per line) and start with\n"
        "#   convoy launch --hostfile FILE --master_addr {} --master_port {} -- train THIS_FILE\n",
        answers.machines, std::max<std::int64_t>(1, answers.processes / answers.machines),
        answers.address.empty() ? "ADDRESS" : answers.address, answers.port.empty() ? "29500" : answers.port);
  }
  return text;
}

}  // namespace

int config_command(const Words& words) {
  CLI::App app("Asks accelerate's questions and writes the answers as a run file.", "config");
  std::string output = "convoy.yaml";
  std::string from;
  bool use_default = false;
  bool overwrite = false;
  app.add_option("--output", output, "the run file to write (convoy.yaml)");
  app.add_option("--from", from, "an accelerate default_config.yaml to convert instead of asking")
      ->check(CLI::ExistingFile);
  app.add_flag("--default", use_default, "ask nothing: one process, no sharding");
  app.add_flag("--overwrite", overwrite, "replace the file if it is there");
  if (!parse_words(app, words)) return 0;
  if (std::filesystem::exists(output) && !overwrite)
    throw usage_error(fmt::format("{} is there already", output))
        .at("--output")
        .mend("give --overwrite, or another name");
  const Answers answers = use_default ? Answers{} : !from.empty() ? from_accelerate(from) : ask_all();
  const std::string text = run_file(answers);
  // What is written can be read, but for a DeepSpeed file that is not there yet.
  if (!answers.deepspeed_file || std::filesystem::exists(*answers.deepspeed_file)) parse_run_text(text, output);
  write_file_atomic(output, text);
  fmt::print("{}:\n{}", output, text);
  return 0;
}

}  // namespace convoy
