#include "launch/hostfile.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/suggest.h"

namespace convoy {
namespace {

constexpr int kMostSlots = 4096;
constexpr std::string_view kBlank = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<int> parse_number(std::string_view digits) {
  int value = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || failure != std::errc() || end != digits.data() + digits.size() || value < 0) {
    return std::nullopt;
  }
  return value;
}

std::vector<int> first_slots(int count) {
  std::vector<int> slots(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) slots[static_cast<std::size_t>(i)] = i;
  return slots;
}

// Host → its slots; an empty list means all of them.
using Selection = std::map<std::string, std::vector<int>>;

Selection parse_selection(const std::string& text, const std::string& word, const std::vector<Host>& hosts) {
  Selection selection;
  for (std::string_view node : split(text, '@')) {
    node = trimmed(node);
    const std::size_t colon = node.find(':');
    const std::string name(trimmed(node.substr(0, colon)));
    const auto host = std::find_if(hosts.begin(), hosts.end(), [&](const Host& h) { return h.name == name; });
    if (host == hosts.end()) {
      std::vector<std::string> known;
      for (const Host& h : hosts) known.push_back(h.name);
      throw usage_error(fmt::format("Hostname '{}' not found in hostfile{}", name, did_you_mean(name, known))).at(word);
    }
    std::vector<int>& slots = selection[name];
    if (colon == std::string_view::npos) continue;
    for (std::string_view part : split(node.substr(colon + 1), ',')) {
      const std::optional<int> slot = parse_number(trimmed(part));
      if (!slot || std::find(host->slots.begin(), host->slots.end(), *slot) == host->slots.end()) {
        throw usage_error(fmt::format("No slot '{}' specified on host '{}'", trimmed(part), name)).at(word);
      }
      if (std::find(slots.begin(), slots.end(), *slot) == slots.end()) slots.push_back(*slot);
    }
  }
  return selection;
}

void apply_selection(std::vector<Host>& hosts, const Selection& selection, bool include) {
  for (Host& host : hosts) {
    const auto chosen = selection.find(host.name);
    const auto keep = [&](int slot) {
      if (chosen == selection.end()) return !include;
      const std::vector<int>& slots = chosen->second;
      const bool named = slots.empty() || std::find(slots.begin(), slots.end(), slot) != slots.end();
      return named == include;
    };
    host.slots.erase(std::remove_if(host.slots.begin(), host.slots.end(), [&](int slot) { return !keep(slot); }),
                     host.slots.end());
  }
  hosts.erase(std::remove_if(hosts.begin(), hosts.end(), [](const Host& host) { return host.slots.empty(); }),
              hosts.end());
}

}  // namespace

std::vector<Host> parse_hostfile(std::string_view text, const std::string& name) {
  std::vector<Host> hosts;
  int number = 0;
  for (std::string_view whole : split(text, '\n')) {
    ++number;
    const std::string_view line = trimmed(whole.substr(0, whole.find('#')));
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", name, number);
    const auto bad = [&] {
      return usage_error(fmt::format("Hostfile contains a bad entry: {}, unable to proceed with launching", line))
          .at(where)
          .mend("a line is: HOST slots=N");
    };
    const std::size_t gap = line.find_first_of(kBlank);
    if (gap == std::string_view::npos) throw bad();
    const std::string host(line.substr(0, gap));
    std::string_view rest = trimmed(line.substr(gap));
    if (!rest.starts_with("slots=")) throw bad();
    rest.remove_prefix(6);
    const std::optional<int> slots = parse_number(rest.substr(0, rest.find_first_of(kBlank)));
    // A name that begins with a dash would be a word of ssh.
    if (!slots || *slots > kMostSlots || host.starts_with("-")) throw bad();
    if (std::any_of(hosts.begin(), hosts.end(), [&](const Host& h) { return h.name == host; })) {
      throw usage_error(
          fmt::format("Hostfile contains multiple entries for {}, unable to proceed with launching", host))
          .at(where)
          .mend("give each host one line, with the sum of its slots");
    }
    hosts.push_back({host, first_slots(*slots)});
  }
  if (hosts.empty()) {
    throw usage_error("Hostfile is empty or not formatted correctly, unable to proceed with launching.")
        .at(name)
        .mend("a line is: HOST slots=N");
  }
  return hosts;
}

std::optional<std::vector<Host>> read_hostfile(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  return parse_hostfile(read_file(path), path.string());
}

std::vector<Host> choose_hosts(std::vector<Host> hosts, const HostChoice& choice) {
  if (!choice.include.empty() && !choice.exclude.empty()) {
    throw usage_error("--include and --exclude are mutually exclusive").mend("give one of them");
  }
  if ((!choice.include.empty() || !choice.exclude.empty()) && (choice.num_nodes || choice.num_gpus)) {
    throw usage_error("Cannot specify num_nodes/gpus with include/exclude").mend("leave out one of the two");
  }
  if (!choice.include.empty()) apply_selection(hosts, parse_selection(choice.include, "--include", hosts), true);
  if (!choice.exclude.empty()) apply_selection(hosts, parse_selection(choice.exclude, "--exclude", hosts), false);
  if (choice.num_nodes) {
    if (*choice.num_nodes > static_cast<int>(hosts.size())) {
      throw usage_error(fmt::format("--num_nodes {}, but the hostfile has {}", *choice.num_nodes, hosts.size()));
    }
    hosts.resize(static_cast<std::size_t>(*choice.num_nodes));
  }
  if (choice.num_gpus) {
    for (Host& host : hosts) {
      if (*choice.num_gpus > static_cast<int>(host.slots.size())) {
        throw usage_error(
            fmt::format("--num_gpus {}, but host {} has {}", *choice.num_gpus, host.name, host.slots.size()))
            .mend("raise its slots= in the hostfile, or ask for fewer");
      }
      host.slots.resize(static_cast<std::size_t>(*choice.num_gpus));
    }
  }
  std::size_t slots = 0;
  for (const Host& host : hosts) slots += host.slots.size();
  if (slots == 0) throw usage_error("Unable to proceed, no GPU resources available").mend("see the hostfile's slots=");
  hosts.erase(std::remove_if(hosts.begin(), hosts.end(), [](const Host& host) { return host.slots.empty(); }),
              hosts.end());
  return hosts;
}

std::vector<std::pair<std::string, std::string>> parse_environment_file(std::string_view text,
                                                                        const std::string& name) {
  std::vector<std::pair<std::string, std::string>> variables;
  int number = 0;
  for (std::string_view whole : split(text, '\n')) {
    ++number;
    const std::string_view line = trimmed(whole);
    if (line.empty() || line.front() == '#') continue;
    const std::size_t equals = line.find('=');
    const std::string key(trimmed(line.substr(0, equals)));
    if (equals == std::string_view::npos || key.empty() || key.find_first_of(kBlank) != std::string::npos) {
      throw usage_error(fmt::format("'{}' is not KEY=VALUE", line)).at(fmt::format("{}:{}", name, number));
    }
    const std::string value(line.substr(equals + 1));
    const auto earlier =
        std::find_if(variables.begin(), variables.end(), [&](const auto& variable) { return variable.first == key; });
    if (earlier != variables.end()) {
      earlier->second = value;  // later wins
    } else {
      variables.emplace_back(key, value);
    }
  }
  return variables;
}

}  // namespace convoy
