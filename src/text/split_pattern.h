// Hand-written scanners for the pre-tokenisation patterns of the common model families. They give exactly the pieces of
// the regular expression, at several times the speed and independent of a library's Unicode version.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

enum class SplitPattern { kGpt2, kCl100k, kQwen2, kO200k };

// The expression that a scanner stands for, as tokenizer.json files write it. kCl100k is Llama-3's and GLM-4's.
std::string_view expression_of(SplitPattern pattern);
// The scanner of an expression, recognised by its exact text.
std::optional<SplitPattern> find_split_pattern(std::string_view expression);

// Appends the end of each piece; the pieces cover the text without gaps. An invalid byte counts as a character that is
// neither letter, number nor space.
void split_by_pattern(SplitPattern pattern, std::string_view text, std::vector<std::size_t>& ends);
// The same for at most `most` pieces from `from` on, which is 0 or the end of a piece.
void split_by_pattern(SplitPattern pattern, std::string_view text, std::size_t from, std::size_t most,
                      std::vector<std::size_t>& ends);

}  // namespace convoy
