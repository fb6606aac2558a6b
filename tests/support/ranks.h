// Runs a function on several real processes, as the ranks of a job.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace convoy::testing {

struct RankResult {
  bool ended = false;   // by itself
  int signal = 0;       // that killed it
  std::string failure;  // what it threw, or ""
  std::string value;    // what the function returned
};

// How the ranks are connected.
struct Connection {
  bool across_hosts = false;  // as if each were on a host of its own
  double timeout_seconds = 20;
  // Where not empty: rank r runs in the r-th of these network namespaces, and rank 0 has this address.
  std::vector<std::string> namespaces = {};
  std::string master_address = {};
};

// Forks `ranks` processes; each connects to the others and calls `body(communicator)`. Returns what became of each. All
// are killed after `deadline_seconds`.
std::vector<RankResult> run_ranks(int ranks, const std::function<std::string(Communicator&)>& body,
                                  const Connection& connection = {}, double deadline_seconds = 60);

// The same where nothing may fail: the returned values. Failures are test failures.
std::vector<std::string> run_healthy_ranks(int ranks, const std::function<std::string(Communicator&)>& body,
                                           const Connection& connection = {});
// Whether this build can connect ranks across hosts.
bool can_cross_hosts();
int free_port();

}  // namespace convoy::testing
