// A job on several hosts: `convoy launch --no_ssh` on each of them, started through ssh.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/hostfile.h"
#include "launch/supervisor.h"

namespace convoy {

using Variables = std::vector<std::pair<std::string, std::string>>;

struct SshLaunchOptions {
  std::string ssh = "ssh";             // the program; called as: ssh -o BatchMode=yes [-p PORT] WORDS… HOST COMMAND
  std::vector<std::string> ssh_words;  // --launcher_args
  std::optional<int> ssh_port;
  std::vector<Host> hosts;     // in the order of their node numbers; one rank per slot
  std::string program;         // convoy, under this path on every host
  std::string folder;          // where it runs there
  std::string master_address;  // of the first host; empty: asked from it with `hostname -I`
  int master_port = 29500;
  std::string token;                 // empty: random
  Variables environment;             // for the ranks
  std::vector<std::string> options;  // further words for each `convoy launch`
  int max_restarts = 0;
  double grace_seconds = 5;
};

// Runs the job to its end, as supervise() does: output, failures and signals pass through. The token and the
// environment go through ssh's stdin, so that no list of processes shows them; what follows there are signals, and its
// end ends the ranks of that host.
int ssh_launch(const SshLaunchOptions& options, const WorkerWords& words);

// What a host's `convoy launch` reads from its stdin first.
struct NodeSetup {
  std::string job, token;
  Variables environment;
};
std::string write_node_setup(const NodeSetup& setup);
// Leaves what follows the setup unread. Throws a peer-lost error when the launcher is gone before the setup is whole.
NodeSetup read_node_setup(int fd);

// The variables that ranks on other hosts get too: those whose names begin as DeepSpeed's list says, and OMP_….
Variables exported_environment(char** environment);
// Those of .deepspeed_env (or DS_ENV_FILE) in the home folder and then in this one; later wins.
Variables environment_files();

// One word for a POSIX shell.
std::string shell_quoted(const std::string& word);

}  // namespace convoy
