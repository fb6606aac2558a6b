#include "launch/hostfile.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <regex>
#include <sstream>

#include "base/error.h"

namespace convoy {
namespace {

std::optional<int> whole_number(const std::string& text) {
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || failure != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, by);) parts.push_back(part);
  return parts;
}

// "worker-1:0,2" → the host and the slots that are named, or none.
Host parse_filter_part(const std::string& part, const std::vector<Host>& known, const std::string& flag) {
  const std::size_t colon = part.find(':');
  Host host{part.substr(0, colon), {}};
  const auto found = std::find_if(known.begin(), known.end(), [&](const Host& each) { return each.name == host.name; });
  if (found == known.end()) throw usage_error(fmt::format("Hostname '{}' not found in hostfile", host.name)).at(flag);
  if (colon == std::string::npos) return host;
  for (const std::string& word : split(part.substr(colon + 1), ',')) {
    const std::optional<int> slot = whole_number(word);
    if (!slot || std::find(found->slots.begin(), found->slots.end(), *slot) == found->slots.end())
      throw usage_error(fmt::format("No slot '{}' specified on host '{}'", word, host.name)).at(flag);
    host.slots.push_back(*slot);
  }
  return host;
}

}  // namespace

std::vector<Host> parse_hostfile(const std::string& text, const std::string& name) {
  static const std::regex entry(R"(^(\S+)\s+slots=(\d+)\s*(#.*)?$)");
  std::vector<Host> hosts;
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    line.erase(0, line.find_first_not_of(" \t\r"));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    const std::string where = fmt::format("{}:{}", name, number);
    std::smatch match;
    if (!std::regex_match(line, match, entry) || !whole_number(match[2]) || *whole_number(match[2]) > 4096) {
      throw usage_error(fmt::format("Hostfile contains a bad entry: {}, unable to proceed with launching", line))
          .at(where)
          .mend("each line is: NAME slots=N");
    }
    Host host{match[1], std::vector<int>(static_cast<std::size_t>(*whole_number(match[2])))};
    std::iota(host.slots.begin(), host.slots.end(), 0);
    for (const Host& other : hosts) {
      if (other.name == host.name)
        throw usage_error(
            fmt::format("Hostfile contains multiple entries for {}, unable to proceed with launching", host.name))
            .at(where);
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) {
    throw usage_error("Hostfile is empty or not formatted correctly, unable to proceed with launching.")
        .at(name)
        .mend("each line is: NAME slots=N");
  }
  return hosts;
}

std::vector<Host> select_hosts(std::vector<Host> hosts, const HostFilter& filter) {
  const bool filters = !filter.include.empty() || !filter.exclude.empty();
  if (!filter.include.empty() && !filter.exclude.empty())
    throw usage_error("include_str and exclude_str are mutually exclusive.").at("--include, --exclude");
  if (filters && (filter.nodes >= 0 || filter.per_node >= 0))
    throw usage_error("Cannot specify num_nodes/gpus with include/exclude").at("--include, --exclude");
  if (!filter.include.empty()) {
    std::vector<Host> chosen;
    for (const std::string& part : split(filter.include, '@')) {
      Host host = parse_filter_part(part, hosts, "--include");
      if (host.slots.empty())
        host = *std::find_if(hosts.begin(), hosts.end(), [&](const Host& each) { return each.name == host.name; });
      chosen.push_back(std::move(host));
    }
    hosts = std::move(chosen);
  }
  if (!filter.exclude.empty()) {
    for (const std::string& part : split(filter.exclude, '@')) {
      const Host out = parse_filter_part(part, hosts, "--exclude");
      for (Host& host : hosts) {
        if (host.name != out.name) continue;
        std::erase_if(host.slots, [&](int slot) {
          return out.slots.empty() || std::find(out.slots.begin(), out.slots.end(), slot) != out.slots.end();
        });
      }
    }
  }
  if (filter.nodes > static_cast<int>(hosts.size()))
    throw usage_error("Num nodes is >1 but no extra nodes available via hostfile").at("--num_nodes");
  if (filter.nodes > 0) hosts.resize(static_cast<std::size_t>(filter.nodes));
  for (Host& host : hosts) {
    if (filter.per_node < 0) continue;
    if (filter.per_node > static_cast<int>(host.slots.size())) {
      throw usage_error(
          fmt::format("{} ranks are asked for on {}, which has {} slots", filter.per_node, host.name, host.slots.size()))
          .at("--num_gpus");
    }
    host.slots.resize(static_cast<std::size_t>(filter.per_node));
  }
  std::erase_if(hosts, [](const Host& host) { return host.slots.empty(); });
  if (hosts.empty()) throw usage_error("Unable to proceed, no resources available").mend("see the hostfile and the filters");
  return hosts;
}

std::string shell_quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./=:,@%+").find(c) != std::string_view::npos;
  });
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace convoy
