#include "base/suggest.h"

#include <algorithm>
#include <vector>

namespace convoy {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> table((a.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return table[i * width + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = i + j;
        continue;
      }
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return at(a.size(), b.size());
}

std::optional<std::string> nearest_name(std::string_view name, std::span<const std::string> known) {
  std::optional<std::string> best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (best) return best;
  // A word cut short: num_procs for num_processes.
  std::size_t longest = std::max<std::size_t>(4, name.size() < 2 ? name.size() : name.size() - 2);
  for (const std::string& candidate : known) {
    const auto common = static_cast<std::size_t>(
        std::mismatch(name.begin(), name.end(), candidate.begin(), candidate.end()).first - name.begin());
    if (common > longest) {
      longest = common;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> known) {
  const auto nearest = nearest_name(name, known);
  return nearest ? ", did you mean '" + *nearest + "'?" : "";
}

}  // namespace convoy
