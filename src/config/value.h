// One value of a run: from text to its type and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace convoy {

// Whole numbers, also written `2e8` or `8.0`; nothing when it is not one or does not fit.
std::optional<std::int64_t> parse_integer(std::string_view text);
// Finite numbers.
std::optional<double> parse_real(std::string_view text);
// true/false, yes/no, on/off, 1/0, in any case.
std::optional<bool> parse_bool(std::string_view text);
// Bytes: a whole number, or a number with B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024).
std::optional<std::int64_t> parse_bytes(std::string_view text);
// YAML's null: "", "~", "null", "Null", "NULL".
bool is_null_word(std::string_view text);

std::string lower(std::string_view text);
// "12GiB" where it is exact, else the number.
std::string bytes_text(std::int64_t bytes);
// A JSON value as YAML on one line; reads back as the same value.
std::string yaml_text(const Json& value);

}  // namespace convoy
