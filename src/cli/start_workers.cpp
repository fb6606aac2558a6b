#include "cli/start_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/checkpoint_store.h"
#include "config/resolve.h"

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

}  // namespace

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

JobOptions job_options(const RunConfig& config, int ranks) {
  JobOptions options;
  options.ranks = ranks;
  options.max_restarts = static_cast<int>(config.max_restarts);
  if (const auto range = elastic_range(config)) {
    options.least_ranks = range->first;
    options.ranks = std::min(ranks, range->second);
  }
  return options;
}

WorkerWords train_words(const RunConfig& config, const Words& words, int ranks) {
  const auto begin = std::filesystem::file_time_type::clock::now();
  return [=](int restart, int now) -> std::optional<std::vector<std::string>> {
    std::vector<std::string> line = {"train"};
    line.insert(line.end(), words.begin(), words.end());
    if (now != ranks) {
      const std::optional<std::int64_t> accumulation = accumulation_on(config, ranks, now);
      if (!accumulation) return std::nullopt;
      line.insert(line.end(), {"--num_processes", std::to_string(now), "--gradient_accumulation_steps",
                               std::to_string(*accumulation)});
    }
    if (restart == 0) return line;
    if (const auto newest = newest_checkpoint(config, begin)) {
      line.insert(line.end(), {"--resume_from_checkpoint", *newest, "--no-overwrite_output_dir"});
    } else if (config.resume_from_checkpoint) {
      line.insert(line.end(), {"--resume_from_checkpoint", *config.resume_from_checkpoint});
    }
    return line;
  };
}

int start_workers(const RunConfig& config, const Words& words, int ranks, const std::filesystem::path& log_dir) {
  SupervisorOptions options;
  options.program = own_program();
  options.log_dir = log_dir;
  const JobOptions job = job_options(config, ranks);
  return supervise(job, options, train_words(config, words, job.ranks));
}

}  // namespace convoy
