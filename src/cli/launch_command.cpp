// convoy launch [words] -- train [RUNFILE] [--key value …]
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/start_workers.h"
#include "launch/hostfile.h"
#include "launch/ssh_launch.h"
#include "train/run.h"

namespace convoy {
namespace {

constexpr const char* kUsual = "/job/hostfile";

struct LaunchWords {
  std::string hostfile;
  HostChoice choice;
  std::optional<int> num_processes;  // over all hosts
  std::string master_address;
  std::optional<int> master_port, ssh_port, node_rank, max_restarts;
  std::string ssh = "ssh";
  std::string launcher_words;
  std::string log_dir;
  double grace_seconds = 5;
  bool no_ssh = false, force_multi = false;
  // Between `convoy launch` and those that it starts.
  bool setup_stdin = false;
  std::vector<int> slots;
  int restart_count = 0;
  Words command;  // without "train"
};

// Those that take no value; needed to find where the words of `convoy launch` end.
const std::set<std::string> kSwitches = {
    "--no_ssh", "--force_multi", "--setup_stdin", "--no_ssh_check", "--standalone", "--help", "-h"};

// As users of other launchers write them: --num-gpus is --num_gpus.
std::string with_underscores(std::string word) {
  const std::size_t end = std::min(word.find('='), word.size());
  if (word.starts_with("--")) std::replace(word.begin() + 2, word.begin() + static_cast<std::ptrdiff_t>(end), '-', '_');
  return word;
}

// Splits at "--" or at the first word that is no option of `convoy launch`.
std::pair<Words, Words> split_command(const Words& words) {
  Words own;
  std::size_t i = 0;
  while (i < words.size() && words[i] != "--" && words[i].starts_with("-")) {
    own.push_back(with_underscores(words[i++]));
    const bool takes_value = own.back().find('=') == std::string::npos && kSwitches.count(own.back()) == 0;
    if (takes_value && i < words.size()) own.push_back(words[i++]);
  }
  if (i < words.size() && words[i] == "--") ++i;
  return {own, Words(words.begin() + static_cast<std::ptrdiff_t>(i), words.end())};
}

std::optional<LaunchWords> parse(const Words& words) {
  LaunchWords launch;
  CLI::App app("Starts a training run on several processes or hosts; the words after -- are a `convoy` command.",
               "launch");
  app.footer("example: convoy launch --num_processes 4 -- train run.yaml");
  app.add_option("-H,--hostfile", launch.hostfile, "lines HOST slots=N (default: /job/hostfile, if there is one)");
  app.add_option("-i,--include", launch.choice.include, "hosts and slots to use: NODE[:SLOT,…][@NODE…]");
  app.add_option("-e,--exclude", launch.choice.exclude, "hosts and slots to leave out");
  app.add_option("--num_nodes,--nnodes", launch.choice.num_nodes, "hosts to use")->check(CLI::Range(1, 65536));
  app.add_option("--num_gpus,--num_accelerators,--nproc_per_node", launch.choice.num_gpus, "ranks on each host")
      ->check(CLI::Range(1, 4096));
  app.add_option("--num_processes", launch.num_processes, "ranks on all hosts together")->check(CLI::Range(1, 1 << 20));
  app.add_option("--master_addr,--main_process_ip", launch.master_address, "address of the first host");
  app.add_option("--master_port,--main_process_port", launch.master_port, "a port that is free there (29500)")
      ->check(CLI::Range(0, 65535));
  app.add_option("--ssh_port", launch.ssh_port, "port of the hosts' ssh")->check(CLI::Range(1, 65535));
  app.add_option("--ssh", launch.ssh, "the ssh program");
  app.add_option("--launcher_args", launch.launcher_words, "further words for ssh");
  app.add_flag("--no_ssh", launch.no_ssh, "start this host's ranks only; with --node_rank, on every host by hand");
  app.add_option("--node_rank,--machine_rank", launch.node_rank, "number of this host")->check(CLI::Range(0, 65535));
  app.add_flag("--force_multi", launch.force_multi, "use ssh even for a single host");
  app.add_option("--log_dir,--enable_each_rank_log", launch.log_dir, "a folder for one log per rank");
  app.add_option("--max_restarts", launch.max_restarts, "restarts after failures that may pass (the run's setting)")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--grace_seconds", launch.grace_seconds, "from a rank's failure until the others are killed (5)")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_flag("--setup_stdin", launch.setup_stdin)->group("");
  app.add_option("--slots", launch.slots)->delimiter(',')->check(CLI::Range(1, 4096))->group("");
  app.add_option("--restart_count", launch.restart_count)->group("");
  bool ignored = false;  // what other launchers have, with nothing to do here
  app.add_flag("--no_ssh_check,--standalone", ignored)->group("");

  const auto [own, command] = split_command(words);
  if (!parse_words(app, own)) return std::nullopt;
  if (command.empty() || command[0] != "train") {
    throw usage_error(command.empty() ? "nothing to launch" : fmt::format("'{}' cannot be launched", command[0]))
        .mend("write: convoy launch [words] -- train RUNFILE");
  }
  launch.command.assign(command.begin() + 1, command.end());
  return launch;
}

RunConfig configured(const LaunchWords& launch) {
  if (!launch.max_restarts) return parse_run_config(launch.command);
  return parse_run_config(with_flag(launch.command, "max_restarts", std::to_string(*launch.max_restarts)));
}

// The words for other processes: theirs is the number of ranks that is started, whatever the run file says.
Words command_for(const LaunchWords& launch, int ranks) {
  return with_flag(launch.command, "num_processes", std::to_string(ranks));
}

// --num_processes counts all hosts' ranks, as accelerate's does.
std::optional<int> ranks_per_node(const LaunchWords& launch, int nodes) {
  if (launch.choice.num_gpus && launch.num_processes && *launch.choice.num_gpus * nodes != *launch.num_processes) {
    throw usage_error(fmt::format("--num_gpus {} on {} hosts is not --num_processes {}", *launch.choice.num_gpus, nodes,
                                  *launch.num_processes))
        .mend("leave out one of them");
  }
  if (launch.choice.num_gpus) return launch.choice.num_gpus;
  if (!launch.num_processes) return std::nullopt;
  if (*launch.num_processes % nodes != 0) {
    throw usage_error(fmt::format("--num_processes {} is no multiple of the {} hosts", *launch.num_processes, nodes))
        .mend("give --num_gpus, the ranks on each host, or a hostfile");
  }
  return *launch.num_processes / nodes;
}

SupervisorOptions supervisor_options(const LaunchWords& launch) {
  SupervisorOptions options;
  options.grace_seconds = launch.grace_seconds;
  options.log_dir = launch.log_dir;
  return options;
}

// One host of a job that others know of: started through ssh by another `convoy launch`, or by hand.
int launch_node(const LaunchWords& launch) {
  const int nodes = launch.slots.empty() ? launch.choice.num_nodes.value_or(1) : static_cast<int>(launch.slots.size());
  const int node = launch.node_rank.value_or(0);
  if (node >= nodes) {
    throw usage_error(fmt::format("--node_rank {} of {} hosts", node, nodes)).mend("host numbers begin at 0");
  }
  if (nodes > 1 && launch.master_address.empty()) {
    throw usage_error("--no_ssh on several hosts needs --master_addr").mend("give the address of host 0");
  }
  std::vector<int> slots = launch.slots;
  if (slots.empty()) slots.assign(static_cast<std::size_t>(nodes), ranks_per_node(launch, nodes).value_or(1));
  SupervisorOptions options = supervisor_options(launch);
  options.program = std::filesystem::read_symlink("/proc/self/exe").string();
  options.node = node;
  options.ranks = slots[static_cast<std::size_t>(node)];
  options.first_rank = std::accumulate(slots.begin(), slots.begin() + node, 0);
  options.world_size = std::accumulate(slots.begin(), slots.end(), 0);
  if (!launch.master_address.empty()) options.master_address = launch.master_address;
  options.master_port = launch.master_port.value_or(nodes > 1 ? 29500 : 0);
  options.first_restart = launch.restart_count;
  if (launch.setup_stdin) {
    NodeSetup setup = read_node_setup(STDIN_FILENO);
    options.job = setup.job;
    options.token = setup.token;
    options.environment = std::move(setup.environment);
    options.control = STDIN_FILENO;
  } else if (nodes > 1) {
    // By hand: what all hosts were told makes the name; a secret has to come in CONVOY_JOB_TOKEN.
    const std::optional<NodeEnvironment> found =
        detect_node([&](const std::string& name) -> std::optional<std::string> {
          if (name == "RANK") return std::to_string(node);
          if (name == "WORLD_SIZE") return std::to_string(nodes);
          if (name == "MASTER_ADDR") return options.master_address;
          if (name == "MASTER_PORT") return std::to_string(options.master_port);
          return name.starts_with("CONVOY_JOB") ? process_environment()(name) : std::nullopt;
        });
    check(found.has_value(), "a node that was described is not recognised");
    const NodeEnvironment& shared = *found;
    options.job = shared.job;
    options.token = shared.token;
  }
  // Restarts are the business of whoever knows all hosts.
  if (nodes == 1 && !launch.setup_stdin)
    return start_workers(configured(launch), command_for(launch, options.ranks), options);
  Words line = command_for(launch, options.world_size);
  if (launch.setup_stdin) line = launch.command;  // it has been through command_for() already
  line.insert(line.begin(), "train");
  return supervise(options, [&](int, int) { return line; });
}

int launch_over_ssh(const LaunchWords& launch, const std::vector<Host>& hosts) {
  const RunConfig config = configured(launch);
  check_before_start(config);
  SshLaunchOptions options;
  options.ssh = launch.ssh;
  std::istringstream words(launch.launcher_words);
  for (std::string word; words >> word;) options.ssh_words.push_back(word);
  options.ssh_port = launch.ssh_port;
  options.hosts = hosts;
  options.program = std::filesystem::read_symlink("/proc/self/exe").string();
  options.folder = std::filesystem::current_path().string();
  options.master_address = launch.master_address;
  options.master_port = launch.master_port.value_or(29500);
  options.token = process_environment()("CONVOY_JOB_TOKEN").value_or("");
  options.environment = exported_environment(environ);
  for (auto& variable : environment_files()) options.environment.push_back(std::move(variable));
  if (!launch.log_dir.empty()) options.options = {"--log_dir", launch.log_dir};
  options.max_restarts = static_cast<int>(config.max_restarts);
  options.grace_seconds = launch.grace_seconds;
  int ranks = 0;
  for (const Host& host : hosts) ranks += static_cast<int>(host.slots.size());
  return ssh_launch(options, training_words(config, command_for(launch, ranks), ranks));
}

int launch_here(const LaunchWords& launch, std::optional<int> ranks) {
  const RunConfig config = configured(launch);
  SupervisorOptions options = supervisor_options(launch);
  options.ranks = ranks.value_or(static_cast<int>(config.num_processes.value_or(1)));
  // Port 0 is a free one; so is one that was not asked for, or that somebody has.
  if (launch.master_port.value_or(0) != 0) {
    if (is_free_port(*launch.master_port)) {
      options.master_port = *launch.master_port;
    } else {
      log_warning("port {} is in use; taking a free one", *launch.master_port);
    }
  }
  return start_workers(config, command_for(launch, options.ranks), options);
}

// What an outer launcher of one process per node says; nothing when there is none.
std::optional<NodeEnvironment> outer_node() {
  if (const auto worker = detect_worker(process_environment())) return node_of(*worker);
  return detect_node(process_environment());
}

}  // namespace

int launch_command(const Words& words) {
  const std::optional<LaunchWords> parsed = parse(words);
  if (!parsed) return 0;
  const LaunchWords& launch = *parsed;
  if (launch.no_ssh || launch.setup_stdin || launch.node_rank) return launch_node(launch);

  std::optional<std::vector<Host>> hosts = read_hostfile(launch.hostfile.empty() ? kUsual : launch.hostfile);
  if (!hosts) {
    if (!launch.hostfile.empty()) {
      // DeepSpeed goes on with this host alone: hours later the user learns that the others were idle.
      throw usage_error(fmt::format("Unable to find hostfile {}", launch.hostfile))
          .mend("correct the path; without --hostfile the job runs on this host alone");
    }
    const bool chosen = !launch.choice.include.empty() || !launch.choice.exclude.empty();
    if (chosen) {
      throw usage_error("--include and --exclude choose from a hostfile, and there is none")
          .mend("give --hostfile FILE, or --num_gpus N for this host");
    }
    if (const auto node = outer_node(); node && !launch.choice.num_nodes) {
      const RunConfig config = configured(launch);
      const int per_node = ranks_per_node(launch, node->nodes)
                               .value_or(node->local_size.value_or(static_cast<int>(config.num_processes.value_or(1))));
      return serve_node(config, command_for(launch, per_node * node->nodes), *node, per_node,
                        supervisor_options(launch));
    }
    if (launch.choice.num_nodes.value_or(1) > 1) {
      throw usage_error("Num nodes is >1 but no extra nodes available via hostfile")
          .mend("give --hostfile FILE, or start --no_ssh --node_rank N on each host");
    }
    return launch_here(launch, ranks_per_node(launch, 1));
  }
  HostChoice choice = launch.choice;
  if (launch.num_processes) {
    const int nodes = std::min(choice.num_nodes.value_or(65536), static_cast<int>(hosts->size()));
    choice.num_gpus = ranks_per_node(launch, nodes);
  }
  const std::vector<Host> chosen = choose_hosts(*hosts, choice);
  if (chosen.size() > 1 || launch.force_multi) return launch_over_ssh(launch, chosen);
  return launch_here(launch, static_cast<int>(chosen.front().slots.size()));
}

}  // namespace convoy
