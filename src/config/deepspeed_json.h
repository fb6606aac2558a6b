// DeepSpeed's configuration files, as leniently as DeepSpeed reads them (hjson): comments (#, //, /* */), trailing and
// missing commas, unquoted keys.
#pragma once

#include <string>
#include <string_view>

#include "config/config_node.h"

namespace convoy {

// Throws usage errors with "name:line": syntax, keys given twice (anywhere), nesting beyond any configuration's.
ConfigNode parse_deepspeed_json(std::string_view text, const std::string& name);

// The text of a configuration given as a path, as JSON, or as base64 of JSON (plain or url-safe); `name` becomes what
// errors call it.
std::string read_deepspeed_text(const std::string& given, std::string* name);

}  // namespace convoy
