#include "cli/run_ranks.h"

#include "base/log.h"
#include "cli/start_workers.h"
#include "devices/make_device.h"
#include "launch/worker_environment.h"

namespace convoy {
namespace {

// One rank of a job.
int be_worker(const RunConfig& config, const WorkerEnvironment& worker, const RankJob& job) {
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
  // A launcher may count the ranks of this host or of all.
  if (config.num_processes && *config.num_processes != worker.size && *config.num_processes != worker.local_size &&
      worker.rank == 0) {
    log_warning("num_processes {} ({}) does not count: {} has started {} ranks", *config.num_processes,
                config.source_of("num_processes"), worker.started_by, worker.size);
  }
  std::unique_ptr<Device> device;  // outlives the communicator, which may use it
  std::unique_ptr<Communicator> communicator = connect(options);
  try {
    device = make_device(config.device, {worker.local_rank, worker.local_size, config.deterministic, config.tf32});
    communicator =
        device_communicator(*device, communicator, {config.gpu_communicator, config.deterministic, config.timeout});
    return job(*device, *communicator);
  } catch (const std::exception& failure) {
    if (communicator) communicator->abort(failure.what());
    throw;
  }
}

}  // namespace

int run_ranks(const std::string& command, const RunConfig& config, const Words& words, std::optional<int> local_rank,
              const RankJob& job) {
  const std::optional<WorkerEnvironment> worker = detect_worker(process_environment(), local_rank);
  if (worker) return be_worker(config, *worker, job);
  if (const std::optional<NodeEnvironment> node = detect_node(process_environment())) {
    if (node->nodes > 1 || node->local_size.value_or(1) > 1) return serve_node(config, words, *node, 0, {}, command);
  }
  SupervisorOptions options;
  options.ranks = static_cast<int>(config.num_processes.value_or(1));
  if (options.ranks > 1) return start_workers(config, words, options, command);
  const std::unique_ptr<Device> device = make_device(config.device, {0, 1, config.deterministic, config.tf32});
  const std::unique_ptr<Communicator> communicator = make_single_communicator();
  return job(*device, *communicator);
}

}  // namespace convoy
