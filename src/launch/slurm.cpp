#include "launch/slurm.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace convoy {
namespace {

// A list longer than this is damaged, not a cluster.
constexpr std::int64_t kMostNodes = 1 << 20;

Error damaged(const char* what, const std::string& list) {
  return usage_error(fmt::format("Slurm's {} '{}' cannot be read", what, list))
      .mend("set MASTER_ADDR and MASTER_PORT yourself, or start with: convoy launch");
}

std::int64_t whole(std::string_view digits, const char* what, const std::string& list) {
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || failure != std::errc() || end != digits.data() + digits.size() || value < 0) {
    throw damaged(what, list);
  }
  return value;
}

// Splits at commas outside brackets.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    } else if (text[i] == '[') {
      ++depth;
    } else if (text[i] == ']') {
      --depth;
    }
  }
  return parts;
}

// Appends every name that `pattern` stands for; it may hold several brackets.
void expand(const std::string& prefix, std::string_view pattern, const std::string& list,
            std::vector<std::string>& names) {
  const std::size_t open = pattern.find('[');
  if (open == std::string_view::npos) {
    if (pattern.find(']') != std::string_view::npos || prefix.size() + pattern.size() == 0) {
      throw damaged("node list", list);
    }
    names.push_back(prefix + std::string(pattern));
    return;
  }
  const std::size_t close = pattern.find(']', open);
  if (close == std::string_view::npos) throw damaged("node list", list);
  const std::string head = prefix + std::string(pattern.substr(0, open));
  for (std::string_view range : split(pattern.substr(open + 1, close - open - 1))) {
    const std::size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
    const std::int64_t low = whole(first, "node list", list);
    const std::int64_t high = whole(last, "node list", list);
    if (high < low || high - low >= kMostNodes) throw damaged("node list", list);
    for (std::int64_t number = low; number <= high; ++number) {
      // Leading zeros are part of the names.
      expand(head + fmt::format("{:0{}}", number, first.size()), pattern.substr(close + 1), list, names);
      if (static_cast<std::int64_t>(names.size()) > kMostNodes) throw damaged("node list", list);
    }
  }
}

}  // namespace

std::vector<std::string> expand_nodelist(const std::string& list) {
  std::vector<std::string> names;
  for (std::string_view part : split(list)) expand("", part, list, names);
  return names;
}

std::vector<int> expand_tasks_per_node(const std::string& list) {
  std::vector<int> tasks;
  for (std::string_view part : split(list)) {
    std::int64_t times = 1;
    const std::size_t open = part.find("(x");
    if (open != std::string_view::npos) {
      if (part.back() != ')') throw damaged("list of tasks", list);
      times = whole(part.substr(open + 2, part.size() - open - 3), "list of tasks", list);
    }
    const std::int64_t count = whole(part.substr(0, open), "list of tasks", list);
    if (count > kMostNodes || times + static_cast<std::int64_t>(tasks.size()) > kMostNodes) {
      throw damaged("list of tasks", list);
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(times), static_cast<int>(count));
  }
  return tasks;
}

}  // namespace convoy
