// The hosts of a job: DeepSpeed's hostfile and the words that choose from it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

// A host and the numbers of the slots (devices) that the job may use there.
struct Host {
  std::string name;
  std::vector<int> slots;
  bool operator==(const Host&) const = default;
};

// Lines "HOST slots=N"; # begins a comment. `name` goes into errors. Errors have DeepSpeed's texts.
std::vector<Host> parse_hostfile(std::string_view text, const std::string& name);
// Nothing when there is no such file.
std::optional<std::vector<Host>> read_hostfile(const std::filesystem::path& path);

struct HostChoice {
  std::string include = {}, exclude = {};  // NODE[:SLOT[,SLOT]…][@NODE…], for instance "worker-0@worker-1:0,2"
  std::optional<int> num_nodes = {}, num_gpus = {};
};
// What is left of `hosts`, in their order. Never empty: that is an error.
std::vector<Host> choose_hosts(std::vector<Host> hosts, const HostChoice& choice);

// Lines KEY=VALUE of .deepspeed_env; others are passed over when they are empty or comments, and errors otherwise.
std::vector<std::pair<std::string, std::string>> parse_environment_file(std::string_view text, const std::string& name);

}  // namespace convoy
