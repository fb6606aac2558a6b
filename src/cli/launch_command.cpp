// convoy launch [options] [--] train RUNFILE …: ranks on one or several hosts.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/start_workers.h"
#include "launch/hostfile.h"
#include "launch/worker_environment.h"

namespace convoy {
namespace {

struct LaunchOptions {
  std::string hostfile, include, exclude, master_address, log_dir, ssh = "ssh", token;
  int nodes = -1, per_node = -1, master_port = 29500, ssh_port = 0, node_rank = -1, max_restarts = -1;
  int first_rank = 0, world = 0, slots = 0;
  bool no_ssh = false, token_from_stdin = false;
};

void add_options(CLI::App& app, LaunchOptions& o) {
  app.add_option("-H,--hostfile", o.hostfile, "lines \"NAME slots=N\"");
  app.add_option("-i,--include", o.include, "hosts and slots to use: worker-0@worker-1:0,2");
  app.add_option("-e,--exclude", o.exclude, "hosts and slots to leave out");
  app.add_option("--num_nodes,--nnodes", o.nodes, "the first so many hosts");
  app.add_option("--num_gpus,--num_processes,--nproc_per_node", o.per_node, "ranks on each host");
  app.add_option("--master_addr", o.master_address, "where rank 0 is reached; the first host");
  app.add_option("--master_port", o.master_port, "of rank 0")->check(CLI::Range(1, 65535));
  app.add_option("--node_rank", o.node_rank, "with --no_ssh: which host of the hostfile this is");
  app.add_flag("--no_ssh", o.no_ssh, "start this host's ranks only; the same command runs on every other host");
  app.add_option("--ssh", o.ssh, "the ssh program");
  app.add_option("--ssh_port", o.ssh_port, "of the hosts");
  app.add_option("--max_restarts", o.max_restarts, "see max_restarts of the run file");
  app.add_option("--log_dir,--enable_each_rank_log", o.log_dir, "a file for the output of each rank");
  // What this command tells itself on other hosts.
  app.add_option("--first_rank", o.first_rank)->group("");
  app.add_option("--world_size", o.world)->group("");
  app.add_option("--slots", o.slots)->group("");
  app.add_flag("--token_from_stdin", o.token_from_stdin)->group("");
}

// The words of `train` behind the options.
Words take_train_words(Words& words) {
  auto begin = std::find_if(words.begin(), words.end(), [](const std::string& w) { return w == "--" || w == "train"; });
  Words behind(begin, words.end());
  words.erase(begin, words.end());
  if (!behind.empty() && behind.front() == "--") behind.erase(behind.begin());
  if (!behind.empty() && behind.front() == "train") behind.erase(behind.begin());
  return behind;
}

// KEY=VALUE lines of .deepspeed_env, in the home folder or here, and what launchers hand on by custom.
std::vector<std::string> exported_variables() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    for (const char* prefix : {"NCCL", "UCX", "MV2", "OMP_", "DNNL_", "CONVOY_"}) {
      if (text.starts_with(prefix) && !text.starts_with("CONVOY_JOB_TOKEN")) all.push_back(text);
    }
  }
  const char* name = std::getenv("DS_ENV_FILE");
  const char* home = std::getenv("HOME");
  for (const std::filesystem::path& folder : {std::filesystem::path(home != nullptr ? home : "."), std::filesystem::path(".")}) {
    std::ifstream file(folder / (name != nullptr ? name : ".deepspeed_env"));
    for (std::string line; std::getline(file, line);) {
      if (line.find('=') != std::string::npos && line[0] != '#') all.push_back(line);
    }
  }
  return all;
}

// When the connection to whoever started this ends, so do the ranks here.
void end_with_stdin() {
  std::thread([] {
    char buffer[256];
    while (::read(STDIN_FILENO, buffer, sizeof(buffer)) > 0) {
    }
    ::kill(::getpid(), SIGTERM);
    std::this_thread::sleep_for(std::chrono::seconds(10));
    ::kill(::getpid(), SIGTERM);
  }).detach();
}

// The ranks of one host of several.
int run_node(const LaunchOptions& o, int node, const Words& words) {
  const RunConfig config = parse_run_config(words);
  SupervisorOptions options;
  options.program = own_program();
  options.first_rank = o.first_rank;
  options.world_size = o.world;
  options.node = node;
  options.master_address = o.master_address;
  options.master_port = o.master_port;
  options.job = "launch";
  options.token = o.token;
  options.log_dir = o.log_dir;
  JobOptions job;
  job.ranks = o.slots;
  return supervise(job, options, train_words(config, words, o.slots));
}

std::string remote_line(const LaunchOptions& o, const std::vector<Host>& hosts, std::size_t node, int world,
                        const Words& words) {
  int first = 0;
  for (std::size_t n = 0; n < node; ++n) first += static_cast<int>(hosts[n].slots.size());
  std::string line = "cd " + shell_quoted(std::filesystem::current_path().string()) + " && exec env";
  for (const std::string& variable : exported_variables()) line += " " + shell_quoted(variable);
  Words all = {own_program(), "launch", "--no_ssh", "--token_from_stdin", "--node_rank", std::to_string(node),
               "--first_rank", std::to_string(first), "--world_size", std::to_string(world), "--slots",
               std::to_string(hosts[node].slots.size()), "--master_addr", o.master_address, "--master_port",
               std::to_string(o.master_port)};
  if (!o.log_dir.empty()) all.insert(all.end(), {"--log_dir", o.log_dir});
  all.insert(all.end(), {"--", "train"});
  all.insert(all.end(), words.begin(), words.end());
  for (const std::string& word : all) line += " " + shell_quoted(word);
  return line;
}

int run_over_ssh(LaunchOptions o, const std::vector<Host>& hosts, const Words& words) {
  const RunConfig config = parse_run_config(words);
  int world = 0;
  for (const Host& host : hosts) world += static_cast<int>(host.slots.size());
  if (o.master_address.empty()) {
    const std::string& first = hosts.front().name;
    o.master_address = first.substr(first.find('@') == std::string::npos ? 0 : first.find('@') + 1);
  }
  JobOptions job = job_options(config, world);
  job.least_ranks = 0;
  job.ranks = world;
  if (o.max_restarts >= 0) job.max_restarts = o.max_restarts;
  job.grace_seconds = 15;  // the hosts' own supervisors end their ranks first
  const WorkerWords words_of = train_words(config, words, world);
  return run_job(job, [&](int restart, int ranks) -> std::optional<std::vector<WorkerProcess::Start>> {
    std::optional<Words> line = words_of(restart, ranks);
    if (!line) return std::nullopt;
    line->erase(line->begin());  // "train"
    const std::string token = random_word();
    std::vector<WorkerProcess::Start> starts;
    for (std::size_t node = 0; node < hosts.size(); ++node) {
      WorkerProcess::Start start;
      start.program = o.ssh;
      if (o.ssh_port > 0) start.words = {"-p", std::to_string(o.ssh_port)};
      start.words.push_back(hosts[node].name);
      start.words.push_back(remote_line(o, hosts, node, world, *line));
      start.rank = static_cast<int>(node);
      start.name = fmt::format("host {}", hosts[node].name);
      start.speaks = node == 0;
      start.plain = true;
      start.input = token + "\n";  // not on a command line, which others can read
      start.search_path = true;
      starts.push_back(std::move(start));
    }
    return starts;
  });
}

}  // namespace

int launch_command(const Words& given) {
  Words words = given;
  const Words train = take_train_words(words);
  LaunchOptions o;
  CLI::App app("Starts the ranks of a training run on one or several hosts: convoy launch [options] [--] train RUNFILE …",
               "launch");
  add_options(app, o);
  if (!parse_words(app, words)) return 0;
  if (train.empty()) throw usage_error("nothing to launch").mend("give: convoy launch [options] -- train RUNFILE …");
  if (o.token_from_stdin) {
    std::getline(std::cin, o.token);
    end_with_stdin();
    return run_node(o, o.node_rank, train);
  }
  std::vector<Host> hosts;
  if (!o.hostfile.empty() && std::filesystem::exists(o.hostfile)) {
    hosts = parse_hostfile(read_file(o.hostfile), o.hostfile);
    hosts = select_hosts(std::move(hosts), {o.include, o.exclude, o.nodes, o.per_node});
  } else {
    if (!o.hostfile.empty())
      log_warning("Unable to find hostfile {}, will proceed with training with local resources only.", o.hostfile);
    if (!o.include.empty() || !o.exclude.empty())
      throw usage_error("--include and --exclude choose among the hosts of a hostfile").mend("give --hostfile");
  }
  if (hosts.empty() || (hosts.size() == 1 && !o.no_ssh)) {
    const RunConfig config = parse_run_config(train);
    const int ranks = !hosts.empty() ? static_cast<int>(hosts.front().slots.size())
                      : o.per_node > 0 ? o.per_node
                                       : static_cast<int>(config.num_processes.value_or(1));
    return start_workers(config, train, ranks, o.log_dir);
  }
  if (!o.no_ssh) return run_over_ssh(o, hosts, train);
  if (o.node_rank < 0 || o.node_rank >= static_cast<int>(hosts.size()))
    throw usage_error(fmt::format("--no_ssh needs --node_rank from 0 to {}", hosts.size() - 1)).at("--node_rank");
  for (std::size_t n = 0; n < hosts.size(); ++n) {
    if (static_cast<int>(n) < o.node_rank) o.first_rank += static_cast<int>(hosts[n].slots.size());
    o.world += static_cast<int>(hosts[n].slots.size());
  }
  o.slots = static_cast<int>(hosts[static_cast<std::size_t>(o.node_rank)].slots.size());
  if (o.master_address.empty()) o.master_address = hosts.front().name;
  const char* token = std::getenv("CONVOY_JOB_TOKEN");
  if (token == nullptr || *token == 0)
    throw usage_error("--no_ssh needs the job's secret in CONVOY_JOB_TOKEN, the same on all hosts")
        .mend("such as: export CONVOY_JOB_TOKEN=$(openssl rand -hex 16), once, and copy it to the others");
  o.token = token;
  return run_node(o, o.node_rank, train);
}

}  // namespace convoy
