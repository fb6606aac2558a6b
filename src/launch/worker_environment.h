// Which rank is this process, and who started it? Read from the environment variables that launchers set: Convoy's own
// supervisor, torchrun, deepspeed, accelerate, Open MPI, MPICH and Intel MPI (Hydra), Slurm, Kubeflow. See
// docs/launch.md.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace convoy {

// The value of an environment variable; absent when it is not set. Tests give their own.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// One rank of a job that a launcher has started.
struct WorkerEnvironment {
  int rank = 0, size = 1;              // in the whole job
  int local_rank = 0, local_size = 1;  // on this node
  int node = 0;
  std::string master_address = "127.0.0.1";  // where rank 0 is reached
  int master_port = 0;
  // The same on all ranks of this attempt, and on no other job's. The token is a secret only if it came in
  // CONVOY_JOB_TOKEN; otherwise it is derived from what the launcher tells all ranks and guards against mistakes only.
  std::string job, token;
  std::string started_by;  // "convoy", "torchrun", "deepspeed", "accelerate", "RANK", "Open MPI", "PMI" or "Slurm"
  int restart_count = 0;
};

// One node of a job whose launcher starts one process per node (Kubeflow, PAI-DLC): this process is to start the ranks
// of its node, with a Supervisor.
struct NodeEnvironment {
  int node = 0, nodes = 1;
  std::optional<int> local_size;  // ranks per node, when the launcher says so
  std::string master_address = "127.0.0.1";
  int master_port = 0;  // 0: nobody else needs to know it, choose a free one
  std::string job, token;
  std::string started_by;  // "Kubeflow", "RANK" or "Slurm"
  int max_restarts = 0;
};

// The rank that this process is; absent when no launcher started it, or one that starts a process per node. The order:
// CONVOY_RANK; RANK, WORLD_SIZE and LOCAL_RANK; Open MPI; PMI; Slurm. `local_rank_word` is that of a --local_rank word
// (old torch.distributed.launch, deepspeed), used only where the environment has no LOCAL_RANK. Throws a usage error
// that names the variables when they are incomplete or contradict each other.
std::optional<WorkerEnvironment> detect_worker(const Environment& environment,
                                               std::optional<int> local_rank_word = std::nullopt);
// The node that this process serves: RANK and WORLD_SIZE without LOCAL_RANK, or PET_NNODES. Only meaningful when
// detect_worker() found nothing.
std::optional<NodeEnvironment> detect_node(const Environment& environment);
// A launcher's process that is alone on its node may serve the node: `srun --ntasks-per-node=1 convoy launch …`.
NodeEnvironment node_of(const WorkerEnvironment& worker);

// Takes --local_rank=N, --local-rank=N, --local_rank N and --local-rank N out of `words`; the last one counts. A
// negative number means "not distributed" and is taken out too.
std::optional<int> take_local_rank(std::vector<std::string>& words);

}  // namespace convoy
