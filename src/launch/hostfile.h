// Which hosts a job runs on: DeepSpeed's hostfile and its filters.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace convoy {

struct Host {
  std::string name;
  std::vector<int> slots;  // numbers of the places for ranks
  friend bool operator==(const Host&, const Host&) = default;
};

// Lines "NAME slots=N", with # comments. Throws usage errors in DeepSpeed's words, with the line.
std::vector<Host> parse_hostfile(const std::string& text, const std::string& name);

struct HostFilter {
  std::string include, exclude;  // "worker-0@worker-1:0,2"; at most one of them
  int nodes = -1, per_node = -1;  // the first so many; -1: all
};
// Throws usage errors in DeepSpeed's words.
std::vector<Host> select_hosts(std::vector<Host> hosts, const HostFilter& filter);

// A word as a POSIX shell takes it.
std::string shell_quoted(const std::string& word);

}  // namespace convoy
