#include "launch/ssh_launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/files.h"

namespace convoy {
namespace {

// Of a setup: no variable is longer.
constexpr std::size_t kLongestLine = 1 << 20;
// How much longer than a host's own supervisor this one waits before it ends ssh.
constexpr double kFurtherGrace = 5;

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
    } else if (c == '\\') {
      result += "\\\\";
    } else {
      result += c;
    }
  }
  return result;
}

std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      result += text[i] == 'n' ? '\n' : text[i];
    } else {
      result += text[i];
    }
  }
  return result;
}

// The words of an ssh call to `host` that runs `command` there.
std::vector<std::string> ssh_call(const SshLaunchOptions& options, const std::string& host,
                                  const std::string& command) {
  // A question for a password would stop ssh in the background.
  std::vector<std::string> words = {"-o", "BatchMode=yes"};
  if (options.ssh_port) words.insert(words.end(), {"-p", std::to_string(*options.ssh_port)});
  words.insert(words.end(), options.ssh_words.begin(), options.ssh_words.end());
  words.insert(words.end(), {host, command});
  return words;
}

std::string first_address(const SshLaunchOptions& options) {
  const std::string& host = options.hosts.front().name;
  std::string line = shell_quoted(options.ssh);
  for (const std::string& word : ssh_call(options, host, "hostname -I")) line += " " + shell_quoted(word);
  const auto fail = [&](const std::string& why) {
    return usage_error(fmt::format("cannot ask {} for its address: {}", host, why))
        .mend(fmt::format("see whether `ssh {} hostname -I` works without a password, or give --master_addr", host));
  };
  std::FILE* pipe = ::popen((line + " </dev/null").c_str(), "re");
  if (pipe == nullptr) throw fail("popen failed");
  std::string answer;
  for (int c = std::fgetc(pipe); c != EOF && answer.size() < 4096; c = std::fgetc(pipe)) {
    answer += static_cast<char>(c);
  }
  const int status = ::pclose(pipe);
  answer.erase(0, answer.find_first_not_of(" \n"));
  answer = answer.substr(0, answer.find_first_of(" \n"));
  if (status != 0 || answer.empty()) throw fail(status != 0 ? "ssh failed" : "it has none");
  return answer;
}

std::string remote_command(const SshLaunchOptions& options, const std::string& address, int node, int restart,
                           const std::vector<std::string>& worker_words) {
  std::vector<std::string> slots;
  for (const Host& host : options.hosts) slots.push_back(std::to_string(host.slots.size()));
  std::vector<std::string> words = {options.program,   "launch",
                                    "--no_ssh",        "--setup_stdin",
                                    "--node_rank",     std::to_string(node),
                                    "--slots",         fmt::format("{}", fmt::join(slots, ",")),
                                    "--master_addr",   address,
                                    "--master_port",   std::to_string(options.master_port),
                                    "--restart_count", std::to_string(restart),
                                    "--grace_seconds", fmt::format("{}", options.grace_seconds)};
  words.insert(words.end(), options.options.begin(), options.options.end());
  words.emplace_back("--");
  words.insert(words.end(), worker_words.begin(), worker_words.end());
  std::string command = fmt::format("cd {} && exec env", shell_quoted(options.folder));
  // Only what the program itself may need to start; the rest comes through its stdin.
  for (const auto& [name, value] : options.environment) {
    if (name == "LD_LIBRARY_PATH" || name == "PATH") command += fmt::format(" {}={}", name, shell_quoted(value));
  }
  for (const std::string& word : words) command += " " + shell_quoted(word);
  return command;
}

}  // namespace

std::string shell_quoted(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string write_node_setup(const NodeSetup& setup) {
  std::string text = fmt::format("job {}\ntoken {}\n", escaped(setup.job), escaped(setup.token));
  for (const auto& [name, value] : setup.environment) text += fmt::format("env {}={}\n", name, escaped(value));
  return text + "start\n";
}

NodeSetup read_node_setup(int fd) {
  NodeSetup setup;
  while (true) {
    // Byte by byte: signals may follow, which are not ours to read.
    std::string line;
    while (line.empty() || line.back() != '\n') {
      char byte = 0;
      const ssize_t got = ::read(fd, &byte, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw Error(Status::kPeerLost, "the launcher was gone before it had said all");
      line += byte;
      if (line.size() > kLongestLine) throw usage_error("a line of the launcher's setup is too long").at("stdin");
    }
    line.pop_back();
    if (line == "start") return setup;
    const std::size_t space = line.find(' ');
    const std::string key = line.substr(0, space);
    const std::string value = space == std::string::npos ? "" : unescaped(line.substr(space + 1));
    const std::size_t equals = value.find('=');
    if (key == "job") {
      setup.job = value;
    } else if (key == "token") {
      setup.token = value;
    } else if (key == "env" && equals != std::string::npos && equals > 0) {
      setup.environment.emplace_back(value.substr(0, equals), value.substr(equals + 1));
    } else {
      throw usage_error(fmt::format("'{}' is no line of a launcher's setup", key))
          .at("stdin")
          .mend("--setup_stdin is for `convoy launch` itself");
    }
  }
}

Variables exported_environment(char** environment) {
  Variables exported;
  for (char** entry = environment; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    for (const char* prefix : {"NCCL", "PYTHON", "MV2", "UCX", "MLFLOW", "OMP_"}) {
      const std::size_t equals = text.find('=');
      if (equals != std::string::npos && text.starts_with(prefix)) {
        exported.emplace_back(text.substr(0, equals), text.substr(equals + 1));
      }
    }
  }
  return exported;
}

Variables environment_files() {
  const char* chosen = std::getenv("DS_ENV_FILE");
  const std::string name = chosen != nullptr && *chosen != '\0' ? chosen : ".deepspeed_env";
  const char* home = std::getenv("HOME");
  Variables all;
  for (const std::filesystem::path& folder :
       {std::filesystem::path(home != nullptr ? home : "."), std::filesystem::path(".")}) {
    const std::filesystem::path path = folder / name;
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) continue;
    for (auto& variable : parse_environment_file(read_file(path), path.string())) all.push_back(std::move(variable));
  }
  return all;
}

int ssh_launch(const SshLaunchOptions& options, const WorkerWords& words) {
  check(!options.hosts.empty(), "a job on no host");
  const std::string address = options.master_address.empty() ? first_address(options) : options.master_address;
  int ranks = 0;
  for (const Host& host : options.hosts) ranks += static_cast<int>(host.slots.size());
  Attempt::Options attempt;
  attempt.grace_seconds = options.grace_seconds + kFurtherGrace;
  const int nodes = static_cast<int>(options.hosts.size());
  return run_with_restarts({nodes, 0, options.max_restarts}, attempt,
                           [&](int restart, int) -> std::optional<std::vector<WorkerProcess::Start>> {
                             const auto worker_words = words(restart, ranks);
                             if (!worker_words) return std::nullopt;
                             const NodeSetup setup{random_word(), options.token.empty() ? random_word() : options.token,
                                                   options.environment};
                             std::vector<WorkerProcess::Start> starts;
                             for (int node = 0; node < nodes; ++node) {
                               const std::string& host = options.hosts[static_cast<std::size_t>(node)].name;
                               WorkerProcess::Start start;
                               start.program = options.ssh;
                               start.words = ssh_call(options, host,
                                                      remote_command(options, address, node, restart, *worker_words));
                               start.name = host;
                               start.speaks = node == 0;
                               start.controlled = true;
                               start.first_input = write_node_setup(setup);
                               starts.push_back(std::move(start));
                             }
                             return starts;
                           });
}

}  // namespace convoy
