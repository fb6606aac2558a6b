#include "launch/worker_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/hash.h"
#include "launch/slurm.h"

namespace convoy {
namespace {

constexpr int kTorchPort = 29500;  // what torchrun and deepspeed use when nobody says otherwise
constexpr int kMostRanks = 1 << 20;

std::optional<int> parse_int(const std::string& text) {
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Reads variables of one environment; an empty value is one that is not set.
class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  std::optional<std::string> text(const std::string& name) const {
    std::optional<std::string> value = environment_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }
  std::string text_or(const std::string& name, const std::string& fallback) const {
    return text(name).value_or(fallback);
  }
  bool has(const std::string& name) const { return text(name).has_value(); }

  std::optional<int> number(const std::string& name, int least = 0, int most = kMostRanks) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    const std::optional<int> parsed = parse_int(*value);
    if (!parsed || *parsed < least || *parsed > most) {
      throw usage_error(fmt::format("{}={} is not a whole number from {} to {}", name, *value, least, most))
          .at("the environment")
          .mend(fmt::format("correct or unset {}", name));
    }
    return parsed;
  }
  int need(const std::string& name, const std::string& because, int least = 0, int most = kMostRanks) const {
    const std::optional<int> value = number(name, least, most);
    if (value) return *value;
    throw usage_error(fmt::format("{} is set, but {} is not", because, name))
        .at("the environment")
        .mend(fmt::format("set both, or unset {} to run without a launcher", because));
  }
  // The first of `names` that is set.
  std::optional<int> first_number(std::initializer_list<const char*> names, int least = 0) const {
    for (const char* name : names) {
      if (const std::optional<int> value = number(name, least)) return value;
    }
    return std::nullopt;
  }

 private:
  const Environment& environment_;
};

// What all ranks of a job share, hashed into its name and token. The user is part of it so that two users' jobs with
// equal settings on one host stay apart.
void identify(const Reader& env, const std::string& shared, int restart, std::string& job, std::string& token) {
  const std::string material =
      fmt::format("{}\n{}:{}\n{}", shared, env.text_or("MASTER_ADDR", ""), env.text_or("MASTER_PORT", ""), ::getuid());
  job = env.text_or("CONVOY_JOB", "");
  // A new attempt must not meet what the last one left behind.
  if (job.empty()) job = hex64(hash64(fmt::format("job\n{}\n{}", material, restart)));
  token = env.text_or("CONVOY_JOB_TOKEN", "");
  if (token.empty()) token = hex64(hash64("token 1\n" + material)) + hex64(hash64("token 2\n" + material));
}

void check_consistent(const WorkerEnvironment& worker, const std::string& rank, const std::string& size,
                      const std::string& local_rank, const std::string& local_size) {
  const auto contradict = [&](const std::string& what) {
    throw usage_error(fmt::format("{} (started by {})", what, worker.started_by))
        .at("the environment")
        .mend("start all ranks with one launcher, and unset what an earlier one left behind");
  };
  if (worker.size < 1) contradict(fmt::format("{}={} is less than 1", size, worker.size));
  if (worker.rank >= worker.size) {
    contradict(fmt::format("{}={} is not below {}={}", rank, worker.rank, size, worker.size));
  }
  if (worker.local_size < 1) contradict(fmt::format("{}={} is less than 1", local_size, worker.local_size));
  if (worker.local_rank >= worker.local_size) {
    contradict(fmt::format("{}={} is not below {}={}", local_rank, worker.local_rank, local_size, worker.local_size));
  }
  if (worker.local_size > worker.size) {
    contradict(fmt::format("{}={} is more than {}={}", local_size, worker.local_size, size, worker.size));
  }
  if (worker.local_rank > worker.rank) {
    contradict(fmt::format("{}={} is more than {}={}", local_rank, worker.local_rank, rank, worker.rank));
  }
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

// MASTER_ADDR, needed only when the job spans nodes.
std::string master_address(const Reader& env, const WorkerEnvironment& worker, const std::string& how) {
  if (const std::optional<std::string> address = env.text("MASTER_ADDR")) return *address;
  if (worker.size == worker.local_size) return "127.0.0.1";
  throw usage_error(fmt::format("{} ranks on more than one node (started by {}), but MASTER_ADDR is not set",
                                worker.size, worker.started_by))
      .at("the environment")
      .mend(how);
}

int own_port(const Reader& env, int fallback) {
  if (const std::optional<int> port = env.number("CONVOY_MASTER_PORT", 1, 65535)) return *port;
  if (const std::optional<int> port = env.number("MASTER_PORT", 1, 65535)) return *port;
  return fallback;
}

// Below the range from which systems take ports for outgoing connections.
int port_from(std::uint64_t number) {
  return 10000 + static_cast<int>(number % 20000);
}

std::optional<WorkerEnvironment> from_convoy(const Reader& env) {
  const char* because = "CONVOY_RANK";
  const std::optional<int> rank = env.number(because);
  if (!rank) return std::nullopt;
  WorkerEnvironment worker;
  worker.started_by = "convoy";
  worker.rank = *rank;
  worker.size = env.need("CONVOY_WORLD_SIZE", because, 1);
  worker.local_rank = env.need("CONVOY_LOCAL_RANK", because);
  worker.local_size = env.need("CONVOY_LOCAL_SIZE", because, 1);
  worker.node = env.number("CONVOY_NODE").value_or(0);
  worker.master_address = env.text_or("CONVOY_MASTER_ADDRESS", "127.0.0.1");
  worker.master_port = env.need("CONVOY_MASTER_PORT", because, 1, 65535);
  worker.restart_count = env.number("CONVOY_RESTART_COUNT").value_or(0);
  check_consistent(worker, "CONVOY_RANK", "CONVOY_WORLD_SIZE", "CONVOY_LOCAL_RANK", "CONVOY_LOCAL_SIZE");
  identify(env, "convoy", worker.restart_count, worker.job, worker.token);
  return worker;
}

std::string torch_launcher(const Reader& env) {
  for (const char* name : {"ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP",
                           "ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_CPU_AFFINITY"}) {
    if (env.has(name)) return "accelerate";
  }
  if (env.has("TORCHELASTIC_RUN_ID")) return "torchrun";
  return env.has("CROSS_SIZE") ? "deepspeed" : "RANK";
}

std::optional<WorkerEnvironment> from_torch(const Reader& env, std::optional<int> local_rank_word) {
  const std::optional<int> rank = env.number("RANK");
  std::optional<int> local_rank = env.number("LOCAL_RANK");
  if (!local_rank) local_rank = local_rank_word;
  if (!rank || !local_rank) return std::nullopt;
  WorkerEnvironment worker;
  worker.started_by = torch_launcher(env);
  worker.rank = *rank;
  worker.local_rank = *local_rank;
  worker.size = env.need("WORLD_SIZE", "RANK", 1);
  const std::optional<int> local_size = env.first_number({"LOCAL_WORLD_SIZE", "LOCAL_SIZE"}, 1);
  const char* local_size_name = env.has("LOCAL_WORLD_SIZE") ? "LOCAL_WORLD_SIZE" : "LOCAL_SIZE";
  if (local_size) {
    worker.local_size = *local_size;
  } else if (is_loopback(env.text_or("MASTER_ADDR", "127.0.0.1"))) {
    worker.local_size = worker.size;
    local_size_name = "WORLD_SIZE";
  } else if (worker.size == 1) {
    worker.local_size = 1;
  } else {
    throw usage_error(
        fmt::format("RANK={}, WORLD_SIZE={} and LOCAL_RANK={} are set, but not how many ranks this node has",
                    worker.rank, worker.size, worker.local_rank))
        .at("the environment")
        .mend("set LOCAL_WORLD_SIZE to the number of ranks on this node");
  }
  check_consistent(worker, "RANK", "WORLD_SIZE", "LOCAL_RANK", local_size_name);
  // These launchers number a node's ranks consecutively.
  if (worker.rank - worker.local_rank + worker.local_size > worker.size) {
    throw usage_error(fmt::format("RANK={}, LOCAL_RANK={}, {}={} and WORLD_SIZE={} contradict each other", worker.rank,
                                  worker.local_rank, local_size_name, worker.local_size, worker.size))
        .at("the environment")
        .mend("the last rank of this node would be beyond WORLD_SIZE; start all ranks with one launcher");
  }
  worker.node =
      env.first_number({"GROUP_RANK", "CROSS_RANK"}).value_or((worker.rank - worker.local_rank) / worker.local_size);
  worker.master_address = master_address(env, worker, "set MASTER_ADDR to the host of rank 0");
  worker.master_port = own_port(env, kTorchPort);
  // Under torchrun, its agent listens on MASTER_PORT itself.
  const std::string agent_store = env.text_or("TORCHELASTIC_USE_AGENT_STORE", "");
  if (!env.has("CONVOY_MASTER_PORT") && (agent_store == "True" || agent_store == "1")) {
    worker.master_port += worker.master_port < 65535 ? 1 : -1;
  }
  worker.restart_count = env.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  // No Slurm step here: each node's launcher may run in a step of its own.
  identify(env, fmt::format("{}\n{}", env.text_or("TORCHELASTIC_RUN_ID", ""), env.text_or("SLURM_JOB_ID", "")),
           worker.restart_count, worker.job, worker.token);
  return worker;
}

std::optional<WorkerEnvironment> from_open_mpi(const Reader& env) {
  const char* because = "OMPI_COMM_WORLD_RANK";
  const std::optional<int> rank = env.number(because);
  if (!rank) return std::nullopt;
  WorkerEnvironment worker;
  worker.started_by = "Open MPI";
  worker.rank = *rank;
  worker.size = env.need("OMPI_COMM_WORLD_SIZE", because, 1);
  worker.local_rank = env.need("OMPI_COMM_WORLD_LOCAL_RANK", because);
  worker.local_size = env.need("OMPI_COMM_WORLD_LOCAL_SIZE", because, 1);
  check_consistent(worker, because, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  worker.node = (worker.rank - worker.local_rank) / worker.local_size;
  worker.master_address =
      master_address(env, worker, "start with: mpirun -x MASTER_ADDR=HOST_OF_RANK_0 -x MASTER_PORT=29500 …");
  const std::string shared =
      fmt::format("{}\n{}", env.text_or("PMIX_NAMESPACE", ""), env.text_or("OMPI_MCA_ess_base_jobid", ""));
  worker.master_port = own_port(env, shared.size() > 1 ? port_from(hash64(shared)) : kTorchPort);
  identify(env, shared, 0, worker.job, worker.token);
  return worker;
}

std::optional<WorkerEnvironment> from_pmi(const Reader& env) {
  const std::optional<int> rank = env.first_number({"PMI_RANK", "PMIX_RANK"});
  if (!rank) return std::nullopt;
  const std::string because = env.has("PMI_RANK") ? "PMI_RANK" : "PMIX_RANK";
  const std::optional<int> local_rank = env.first_number({"MPI_LOCALRANKID", "PALS_LOCAL_RANKID"});
  // srun speaks PMI too, but then Slurm's own variables say more.
  if (!local_rank && env.has("SLURM_PROCID")) return std::nullopt;
  WorkerEnvironment worker;
  worker.started_by = "PMI";
  worker.rank = *rank;
  const std::optional<int> size = env.first_number({"PMI_SIZE", "WORLD_SIZE"}, 1);
  worker.size = size ? *size : env.need("PMI_SIZE", because, 1);
  if (worker.size > 1) {
    worker.local_rank = local_rank ? *local_rank : env.need("MPI_LOCALRANKID", because);
    const std::optional<int> local_size = env.first_number({"MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "LOCAL_SIZE"}, 1);
    worker.local_size = local_size ? *local_size : env.need("MPI_LOCALNRANKS", because, 1);
  }
  check_consistent(worker, because, "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  worker.node = (worker.rank - worker.local_rank) / worker.local_size;
  worker.master_address =
      master_address(env, worker, "start with: mpiexec -genv MASTER_ADDR HOST_OF_RANK_0 -genv MASTER_PORT 29500 …");
  worker.master_port = own_port(env, kTorchPort);
  std::string shared;
  for (const char* name : {"PMI_JOBID", "PALS_APID", "PBS_JOBID", "SLURM_JOB_ID"})
    shared += env.text_or(name, "") + '\n';
  identify(env, shared, 0, worker.job, worker.token);
  return worker;
}

// How many tasks the step has on this node.
int slurm_local_size(const Reader& env, int size, int node) {
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const std::optional<std::string> list = env.text(name);
    if (!list) continue;
    const std::vector<int> tasks = expand_tasks_per_node(*list);
    if (node >= static_cast<int>(tasks.size())) {
      throw usage_error(fmt::format("SLURM_NODEID={} is beyond {}={}", node, name, *list)).at("the environment");
    }
    return tasks[static_cast<std::size_t>(node)];
  }
  if (const std::optional<int> tasks = env.number("SLURM_NTASKS_PER_NODE", 1)) return *tasks;
  const int nodes = env.first_number({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}, 1).value_or(1);
  if (size % nodes != 0) {
    throw usage_error(fmt::format("SLURM_NTASKS={} is no multiple of SLURM_NNODES={}", size, nodes))
        .at("the environment")
        .mend("start with srun --ntasks-per-node=N");
  }
  return size / nodes;
}

std::optional<WorkerEnvironment> from_slurm(const Reader& env) {
  const char* because = "SLURM_PROCID";
  const std::optional<int> rank = env.number(because);
  if (!rank || env.has("RANK")) return std::nullopt;
  // A batch script itself also has SLURM_PROCID=0 and the whole job's SLURM_NTASKS, but no step.
  if (!env.has("SLURM_STEP_ID") && env.text_or("ENVIRONMENT", "") == "BATCH") return std::nullopt;
  const std::optional<int> size = env.first_number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, 1);
  if (size == 1) return std::nullopt;
  WorkerEnvironment worker;
  worker.started_by = "Slurm";
  worker.rank = *rank;
  worker.size = size ? *size : env.need("SLURM_NTASKS", because, 1);
  worker.local_rank = env.need("SLURM_LOCALID", because);
  worker.node = env.number("SLURM_NODEID").value_or(0);
  worker.local_size = slurm_local_size(env, worker.size, worker.node);
  check_consistent(worker, because, "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE");
  std::optional<std::string> nodes;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (!nodes) nodes = env.text(name);
  }
  if (!env.has("MASTER_ADDR") && nodes) {
    worker.master_address = worker.size == worker.local_size ? "127.0.0.1" : expand_nodelist(*nodes).front();
  } else {
    worker.master_address = master_address(env, worker, "set MASTER_ADDR to the first node of the job");
  }
  const std::string job_id = env.text_or("SLURM_JOB_ID", env.text_or("SLURM_JOBID", ""));
  const std::string step = env.text_or("SLURM_STEP_ID", env.text_or("SLURM_STEPID", "0"));
  const std::optional<int> job_number = parse_int(job_id);
  // Two steps of one job may share their first node.
  const int step_number = parse_int(step).value_or(0);
  worker.master_port = own_port(
      env, job_number ? port_from(static_cast<std::uint64_t>(*job_number) + static_cast<std::uint64_t>(step_number))
                      : kTorchPort);
  worker.restart_count = env.number("SLURM_RESTART_COUNT").value_or(0);
  identify(env, fmt::format("{}.{}", job_id, step), worker.restart_count, worker.job, worker.token);
  return worker;
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

std::optional<WorkerEnvironment> detect_worker(const Environment& environment, std::optional<int> local_rank_word) {
  const Reader env(environment);
  if (auto worker = from_convoy(env)) return worker;
  if (auto worker = from_torch(env, local_rank_word)) return worker;
  if (auto worker = from_open_mpi(env)) return worker;
  if (auto worker = from_pmi(env)) return worker;
  if (auto worker = from_slurm(env)) return worker;
  if (env.has("LOCAL_RANK") && !env.has("RANK")) {
    env.number("LOCAL_RANK");
    throw usage_error("LOCAL_RANK is set, but RANK and WORLD_SIZE are not")
        .at("the environment")
        .mend("set all three, or unset LOCAL_RANK to run without a launcher");
  }
  return std::nullopt;
}

std::optional<NodeEnvironment> detect_node(const Environment& environment) {
  const Reader env(environment);
  NodeEnvironment node;
  if (const std::optional<std::string> nodes = env.text("PET_NNODES")) {
    node.started_by = "Kubeflow";
    const std::string fixed = nodes->substr(nodes->find(':') == std::string::npos ? 0 : nodes->find(':') + 1);
    const std::optional<int> count = parse_int(fixed);
    if (!count || *count < 1) {
      throw usage_error(fmt::format("PET_NNODES={} is neither a number nor MIN:MAX", *nodes)).at("the environment");
    }
    node.nodes = *count;
    const std::optional<int> number = env.first_number({"PET_NODE_RANK", "RANK"});
    if (!number && node.nodes > 1) {
      throw usage_error(fmt::format("PET_NNODES={} is set, but neither PET_NODE_RANK nor RANK", *nodes))
          .at("the environment")
          .mend("Convoy needs a fixed rank for each node: leave out the elastic policy or set PET_NODE_RANK");
    }
    node.node = number.value_or(0);
    const std::string per_node = env.text_or("PET_NPROC_PER_NODE", "auto");
    if (per_node != "auto" && per_node != "gpu" && per_node != "cpu") {
      node.local_size = env.number("PET_NPROC_PER_NODE", 1);
    }
  } else if (const std::optional<int> rank = env.number("RANK")) {
    node.started_by = "RANK";
    node.node = *rank;
    node.nodes = env.need("WORLD_SIZE", "RANK", 1);
    node.local_size = env.number("NPROC_PER_NODE", 1);
  } else if (env.number("WORLD_SIZE", 1).value_or(1) > 1) {
    throw usage_error("WORLD_SIZE is set, but RANK is not")
        .at("the environment")
        .mend("set both, or unset WORLD_SIZE to run without a launcher");
  } else {
    return std::nullopt;
  }
  if (node.node >= node.nodes) {
    throw usage_error(fmt::format("node {} of {} nodes: {} contradict each other", node.node, node.nodes,
                                  node.started_by == "RANK" ? "RANK and WORLD_SIZE" : "PET_NODE_RANK and PET_NNODES"))
        .at("the environment");
  }
  node.max_restarts = env.number("PET_MAX_RESTARTS").value_or(0);
  std::string endpoint = env.text_or("PET_RDZV_ENDPOINT", "");
  std::optional<int> endpoint_port;
  if (const std::size_t colon = endpoint.rfind(':'); colon != std::string::npos) {
    endpoint_port = parse_int(endpoint.substr(colon + 1));
    endpoint.resize(colon);
  }
  const std::string address = env.text_or("MASTER_ADDR", env.text_or("PET_MASTER_ADDR", endpoint));
  if (!address.empty()) {
    node.master_address = address;
  } else if (node.nodes > 1) {
    throw usage_error(fmt::format("{} nodes, but MASTER_ADDR is not set", node.nodes))
        .at("the environment")
        .mend("set MASTER_ADDR to the host of node 0");
  }
  const int fallback =
      node.nodes > 1 ? env.number("PET_MASTER_PORT", 1, 65535).value_or(endpoint_port.value_or(kTorchPort)) : 0;
  node.master_port = own_port(env, fallback);
  identify(env, fmt::format("{}\n{}", address, env.text_or("PET_RDZV_ID", "")), 0, node.job, node.token);
  return node;
}

NodeEnvironment node_of(const WorkerEnvironment& worker) {
  if (worker.local_size != 1) {
    throw usage_error(fmt::format("{} has started {} processes on this node, and each would start ranks of its own",
                                  worker.started_by, worker.local_size))
        .mend("start one process per node, or start `convoy train` itself with the launcher, without convoy launch");
  }
  NodeEnvironment node;
  node.node = worker.rank;
  node.nodes = worker.size;
  node.master_address = worker.master_address;
  node.master_port = worker.master_port;
  node.job = worker.job;
  node.token = worker.token;
  node.started_by = worker.started_by;
  return node;
}

std::optional<int> take_local_rank(std::vector<std::string>& words) {
  std::optional<int> found;
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (key != "--local_rank" && key != "--local-rank") {
      kept.push_back(word);
      continue;
    }
    std::string value;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < words.size()) {
      value = words[++i];
    }
    const std::optional<int> number = parse_int(value);
    if (!number) throw usage_error(fmt::format("{} needs a whole number, not '{}'", key, value)).at(key);
    found = *number >= 0 ? number : std::nullopt;
  }
  words = std::move(kept);
  return found;
}

}  // namespace convoy
