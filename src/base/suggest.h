// "Did you mean": the nearest of some known names.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace convoy {

// Levenshtein distance with transpositions.
std::size_t edit_distance(std::string_view a, std::string_view b);
// The nearest name, if it is near enough to be a slip of the pen (a third of the length, at least 2).
std::optional<std::string> nearest_name(std::string_view name, std::span<const std::string> known);
// ", did you mean 'x'?" or "".
std::string did_you_mean(std::string_view name, std::span<const std::string> known);

}  // namespace convoy
