// JSON for configurations and metadata. Key order is kept, so that a file can be written back as it was read.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace convoy {

using Json = nlohmann::ordered_json;

// Parses strict JSON; `name` (a file name) and line:column go into the error, whose status is `usage`.
Json parse_json(std::string_view text, const std::string& name);
Json read_json(const std::filesystem::path& path);
// Two spaces of indent, a newline at the end; doubles in shortest form that reads back equal.
std::string dump_json(const Json& value);

}  // namespace convoy
