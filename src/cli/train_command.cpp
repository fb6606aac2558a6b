// convoy train [RUNFILE] [--key value …]
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/checkpoint_store.h"
#include "cli/commands.h"
#include "comm/communicator.h"
#include "config/resolve.h"
#include "config/run_config.h"
#include "convoy_version.h"
#include "cpu/cpu_device.h"
#include "launch/supervisor.h"
#include "launch/worker_environment.h"
#include "train/run.h"

namespace convoy {
namespace {

// One rank of a job.
int be_worker(const RunConfig& config, const WorkerEnvironment& worker) {
  CommunicatorOptions options;
  options.rank = worker.rank;
  options.size = worker.size;
  options.local_rank = worker.local_rank;
  options.local_size = worker.local_size;
  options.master_address = worker.master_address;
  options.master_port = worker.master_port;
  options.job = worker.job;
  options.token = worker.token;
  options.serve_rendezvous = worker.rank == 0;
  options.timeout_seconds = config.timeout;
  const std::unique_ptr<Communicator> communicator = connect(options);
  CpuDevice device;
  try {
    return run_training(config, device, kVersion, *communicator);
  } catch (const std::exception& failure) {
    communicator->abort(failure.what());
    throw;
  }
}

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

// Starts the ranks as processes of this machine and looks after them.
int start_workers(const RunConfig& config, const Words& words, int ranks) {
  SupervisorOptions options;
  options.program = std::filesystem::read_symlink("/proc/self/exe").string();
  options.ranks = ranks;
  options.max_restarts = static_cast<int>(config.max_restarts);
  if (const auto range = elastic_range(config)) {
    options.least_ranks = range->first;
    options.ranks = std::min(ranks, range->second);
  }
  const int planned = options.ranks;
  const auto begin = std::filesystem::file_time_type::clock::now();
  return supervise(options, [&](int restart, int now) -> std::optional<std::vector<std::string>> {
    std::vector<std::string> line = {"train"};
    line.insert(line.end(), words.begin(), words.end());
    if (now != ranks) {
      const std::optional<std::int64_t> accumulation = accumulation_on(config, planned, now);
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
  });
}

}  // namespace

int train_command(const Words& words) {
  if (std::any_of(words.begin(), words.end(),
                  [](const std::string& word) { return word == "--help" || word == "-h"; })) {
    fmt::print(
        "usage: convoy train [RUNFILE] [--key value …]\n\nEvery key of a run file is also a flag; a flag wins over the "
        "file.\n\n{}",
        config_help());
    return 0;
  }
  Words kept = words;
  const std::optional<int> local_rank = take_local_rank(kept);
  const RunConfig config = parse_run_config(kept);
  const std::optional<WorkerEnvironment> worker = detect_worker(process_environment(), local_rank);
  if (worker) return be_worker(config, *worker);
  const int ranks = static_cast<int>(config.num_processes.value_or(1));
  if (ranks > 1) return start_workers(config, kept, ranks);
  CpuDevice device;
  const std::unique_ptr<Communicator> communicator = make_single_communicator();
  return run_training(config, device, kVersion, *communicator);
}

}  // namespace convoy
