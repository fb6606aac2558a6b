#include "cli/start_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/checkpoint_store.h"
#include "config/key_registry.h"
#include "config/resolve.h"
#include "train/run.h"

namespace convoy {
namespace {

std::optional<std::pair<int, int>> elastic_range(const RunConfig& config) {
  if (!config.elastic) return std::nullopt;
  int least = 0;
  int most = 0;
  char colon = 0;
  std::istringstream text(*config.elastic);
  if (text >> least >> colon >> most && colon == ':' && least >= 1 && most >= least && text.eof())
    return std::pair(least, most);
  throw usage_error(fmt::format("`elastic` is MIN:MAX, not '{}'", *config.elastic))
      .at(config.source_of("elastic"))
      .mend("such as 2:4");
}

// The global batch stays: fewer ranks accumulate more. Nothing where it cannot be dealt to so many.
std::optional<std::int64_t> accumulation_on(const RunConfig& config, int ranks_then, int ranks_now) {
  RunConfig then = config;
  resolve_batch(then, ranks_then);
  const std::int64_t micro_batches = then.gradient_accumulation_steps * ranks_then;
  if (micro_batches % ranks_now != 0) return std::nullopt;
  return micro_batches / ranks_now;
}

// What a restart goes on from. With overwrite_output_dir, the folder may hold checkpoints of another run.
std::optional<std::string> newest_checkpoint(const RunConfig& config, std::filesystem::file_time_type begin) {
  const CheckpointStore store(config.output_dir);
  std::optional<std::string> newest;
  for (const CheckpointInfo& info : store.list()) {
    const bool ours = !config.overwrite_output_dir ||
                      std::filesystem::last_write_time(info.folder / CheckpointManifest::kFileName) >= begin;
    if (ours && CheckpointStore::verify(info.folder).empty()) newest = info.folder.string();
  }
  return newest;
}

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // namespace

Words with_flag(const Words& words, const std::string& name, const std::string& value) {
  const Key* key = find_key(name);
  check(key != nullptr, "a flag for other processes is unknown");
  Words kept;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    std::string given =
        words[i].starts_with("--") ? words[i].substr(2, equals == std::string::npos ? equals : equals - 2) : "";
    std::replace(given.begin(), given.end(), '-', '_');
    if (given.empty() || find_key(given) != key) {
      kept.push_back(words[i]);
    } else if (equals == std::string::npos && i + 1 < words.size() && !words[i + 1].starts_with("--")) {
      ++i;  // its value
    }
  }
  kept.insert(kept.end(), {"--" + name, value});
  return kept;
}

WorkerWords training_words(const RunConfig& config, const Words& words, int ranks) {
  const auto begin = std::filesystem::file_time_type::clock::now();
  const auto range = elastic_range(config);
  const int planned = range ? std::min(ranks, range->second) : ranks;
  return [=, &config](int restart, int now) -> std::optional<std::vector<std::string>> {
    std::vector<std::string> line = {"train"};
    line.insert(line.end(), words.begin(), words.end());
    if (now != ranks) {
      const std::optional<std::int64_t> accumulation = accumulation_on(config, planned, now);
      if (!accumulation) return std::nullopt;
      line = with_flag(line, "num_processes", std::to_string(now));
      line = with_flag(line, "gradient_accumulation_steps", std::to_string(*accumulation));
    }
    if (restart == 0) return line;
    if (const auto newest = newest_checkpoint(config, begin)) {
      line = with_flag(line, "resume_from_checkpoint", *newest);
      if (config.overwrite_output_dir) line.emplace_back("--no-overwrite_output_dir");
    }
    return line;
  };
}

int start_workers(const RunConfig& config, const Words& words, SupervisorOptions options) {
  check_before_start(config);
  options.program = own_program();
  options.max_restarts = static_cast<int>(config.max_restarts);
  const int ranks = options.ranks;
  if (const auto range = elastic_range(config)) {
    options.least_ranks = range->first;
    options.ranks = std::min(ranks, range->second);
  }
  return supervise(options, training_words(config, words, ranks));
}

int serve_node(const RunConfig& config, const Words& words, const NodeEnvironment& node, int local_size,
               SupervisorOptions options) {
  check_before_start(config);
  if (local_size == 0) local_size = node.local_size.value_or(static_cast<int>(config.num_processes.value_or(1)));
  options.program = own_program();
  options.ranks = local_size;
  options.node = node.node;
  options.first_rank = node.node * local_size;
  options.world_size = node.nodes * local_size;
  options.master_address = node.master_address;
  options.master_port = node.master_port;
  options.job = node.job;
  options.token = node.token;
  // One node alone cannot start again: its launcher starts all of them anew, for the exit status says that it is worth
  // it.
  options.max_restarts = node.nodes > 1 ? 0 : std::max(node.max_restarts, static_cast<int>(config.max_restarts));
  return supervise(options, training_words(config, words, local_size));
}

}  // namespace convoy
