// convoy evaluate MODEL [RUNFILE] --eval_files FILES; convoy evaluate --predictions FILE
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/checkpoint_store.h"
#include "cli/commands.h"
#include "cli/run_ranks.h"
#include "cli/start_workers.h"
#include "config/run_config.h"
#include "convoy_version.h"
#include "data/text_pairs.h"
#include "devices/make_device.h"
#include "launch/worker_environment.h"
#include "train/run_evaluation.h"

namespace convoy {
namespace {

constexpr const char* kHelp = R"(usage: convoy evaluate MODEL [RUNFILE] --eval_files FILES [--key value …]
       convoy evaluate --predictions FILE [--normalize HOW]
       convoy evaluate --hypotheses FILE --references FILE [--normalize HOW]

The first form says how well a model predicts data: loss, perplexity, accuracy, bits per byte. MODEL is a model folder,
a checkpoint, or the output folder of a run. Without --eval_files, what validation_split sets aside of train_files. The
figures do not depend on --num_processes.

  --output FILE          also write the results as JSON
  --targets WHICH        trained (the default): what training learns, such as the assistant's turns; all: every token
  --plan                 only say what memory it takes

The other forms compare texts that are there: word, character and mixed error rates. A line of --predictions is JSON
with a hypothesis and a reference; line n of --hypotheses belongs to line n of --references.

  --normalize HOW        before texts are compared: none (the default), basic, words or chinese; see docs/data.md
  --hypothesis_field F   --reference_field F   names of the fields, where they are not the usual ones
  --details FILE         JSON lines: every pair with its errors
  --output FILE          also write the rates as JSON

Keys of the first form; every key of a run file is also a flag.

)";

// The command's own words beside the keys of a run.
class OwnWords {
 public:
  explicit OwnWords(Words words) : words_(std::move(words)) {}

  // Takes the last `--name VALUE` or `--name=VALUE`, dashes and underscores alike.
  std::optional<std::string> take(const std::string& name) {
    std::optional<std::string> value;
    for (std::size_t i = 0; i < words_.size();) {
      const std::size_t equals = words_[i].find('=');
      if (!is_flag(i, name)) {
        ++i;
      } else if (equals != std::string::npos) {
        value = words_[i].substr(equals + 1);
        erase(i, 1);
      } else if (i + 1 < words_.size() && !words_[i + 1].starts_with("--")) {
        value = words_[i + 1];
        erase(i, 2);
      } else {
        throw usage_error(fmt::format("`--{}` needs a value", name)).at("command line");
      }
    }
    return value;
  }
  bool take_flag(const std::string& name) {
    bool found = false;
    for (std::size_t i = 0; i < words_.size();) {
      if (!is_flag(i, name) || words_[i].find('=') != std::string::npos) {
        ++i;
        continue;
      }
      found = true;
      erase(i, 1);
    }
    return found;
  }
  // A first word that is a folder.
  std::optional<std::string> take_folder() {
    if (words_.empty() || words_.front().starts_with("-") || !std::filesystem::is_directory(words_.front())) return {};
    std::string folder = words_.front();
    erase(0, 1);
    return folder;
  }
  const Words& rest() const { return words_; }

 private:
  bool is_flag(std::size_t i, const std::string& name) const {
    if (!words_[i].starts_with("--")) return false;
    std::string given = words_[i].substr(2, words_[i].find('=') - 2);
    std::replace(given.begin(), given.end(), '-', '_');
    return given == name;
  }
  void erase(std::size_t at, std::size_t count) {
    const auto first = words_.begin() + static_cast<std::ptrdiff_t>(at);
    words_.erase(first, first + static_cast<std::ptrdiff_t>(count));
  }
  Words words_;
};

// A run that has not ended holds its model in its newest checkpoint.
std::string model_in(const std::string& folder) {
  if (std::filesystem::exists(std::filesystem::path(folder) / "config.json")) return folder;
  CheckpointStore store(folder);
  const std::optional<CheckpointInfo> newest = store.newest_whole();
  if (!newest) {
    throw usage_error("the folder holds neither a model (config.json) nor a whole checkpoint")
        .at(folder)
        .mend("name a model folder, a checkpoint or the output folder of a run");
  }
  return newest->folder.string();
}

void write_json(const std::string& file, const std::string& text) {
  const std::filesystem::path path(file);
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  write_file_atomic(path, text);
}

void print_rate(const char* name, const EditCounts& edits) {
  fmt::print("{:<22} {:.2f}%  ({} of {}: {} substituted, {} inserted, {} left out)\n", name, 100 * edits.rate(),
             edits.errors(), edits.reference, edits.substitutions, edits.insertions, edits.deletions);
}

struct Comparison {
  std::optional<std::string> predictions, hypotheses, references, details, output;
  PairFields fields;
  std::string normalize = "none";
};

int compare_texts(const Comparison& asked) {
  if (asked.predictions.has_value() == (asked.hypotheses.has_value() || asked.references.has_value()) ||
      asked.hypotheses.has_value() != asked.references.has_value()) {
    throw usage_error("texts to compare come from one file of JSON lines, or from two files of lines")
        .mend("give --predictions FILE, or --hypotheses FILE and --references FILE");
  }
  const TextNormalization how = TextNormalization::named(asked.normalize);
  const std::vector<TextPair> pairs = asked.predictions ? read_text_pairs_json(*asked.predictions, asked.fields)
                                                        : read_text_pairs(*asked.hypotheses, *asked.references);
  if (pairs.empty()) throw data_error("no pair of texts").at(asked.predictions.value_or(asked.hypotheses.value_or("")));
  const ErrorRates rates = error_rates(pairs, how);
  fmt::print("{} pairs, {} of them differ (normalised: {})\n", rates.pairs, rates.wrong, asked.normalize);
  print_rate("word error rate", rates.words);
  print_rate("character error rate", rates.characters);
  print_rate("mixed error rate", rates.mixed);
  if (asked.output) {
    Json json = to_json(rates);
    json["normalize"] = asked.normalize;
    write_json(*asked.output, dump_json(json));
  }
  if (asked.details) {
    std::string text;
    for (const TextPair& pair : pairs) {
      Json line = {{"where", pair.where}, {"reference", pair.reference}, {"hypothesis", pair.hypothesis}};
      line.update(to_json(error_rates(pair, how)));
      line.erase("pairs");
      text += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    }
    write_json(*asked.details, text);
  }
  return 0;
}

}  // namespace

int evaluate_command(const Words& words) {
  if (std::any_of(words.begin(), words.end(),
                  [](const std::string& word) { return word == "--help" || word == "-h"; })) {
    fmt::print("{}{}", kHelp, config_help());
    return 0;
  }
  OwnWords own(words);
  Comparison compared{own.take("predictions"),
                      own.take("hypotheses"),
                      own.take("references"),
                      own.take("details"),
                      own.take("output"),
                      {},
                      "none"};
  compared.fields = {own.take("hypothesis_field").value_or(""), own.take("reference_field").value_or("")};
  const std::optional<std::string> normalize = own.take("normalize");
  if (compared.predictions || compared.hypotheses || compared.references) {
    compared.normalize = normalize.value_or("none");
    if (!own.rest().empty()) {
      throw usage_error(fmt::format("'{}' has no meaning where texts are compared", own.rest().front()))
          .mend("see: convoy evaluate --help");
    }
    return compare_texts(compared);
  }
  if (compared.details || normalize || !compared.fields.hypothesis.empty() || !compared.fields.reference.empty()) {
    throw usage_error("--normalize, --details and the fields are for texts that are compared")
        .mend("give --predictions FILE, or --hypotheses FILE and --references FILE");
  }

  EvaluateOptions options;
  if (compared.output) options.output = *compared.output;
  const std::string targets = own.take("targets").value_or("trained");
  if (targets != "trained" && targets != "all")
    throw usage_error(fmt::format("`--targets` must be trained or all, not '{}'", targets)).at("command line");
  options.all_targets = targets == "all";
  const bool plan = own.take_flag("plan");
  const std::optional<std::string> folder = own.take_folder();
  Words keys = own.rest();
  const std::optional<int> local_rank = take_local_rank(keys);
  if (folder) keys = with_flag(keys, "model", model_in(*folder));
  const RunConfig config = parse_run_config(keys);
  if (plan) {
    const std::unique_ptr<Device> device = make_device(
        config.device, {0, static_cast<int>(config.num_processes.value_or(1)), config.deterministic, config.tf32});
    const std::string text = plan_evaluation(config, *device);
    fmt::print("{}", text);
    return static_cast<int>(text.ends_with("does not fit\n") ? Status::kDoesNotFit : Status::kDone);
  }
  check_evaluation_inputs(config);
  // The ranks get the words that were chosen here: a newer checkpoint may appear meanwhile.
  Words line = keys;
  line.insert(line.end(), {"--targets", targets});
  if (options.output) line.insert(line.end(), {"--output", options.output->string()});
  return run_ranks("evaluate", config, line, local_rank, [&](Device& device, Communicator& communicator) {
    return run_evaluation(config, options, device, kVersion, communicator);
  });
}

}  // namespace convoy
