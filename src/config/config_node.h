// A run file as a tree that still knows its lines. YAML and JSON give the same tree.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace convoy {

struct ConfigEntry;

struct ConfigNode {
  enum class Kind : std::uint8_t { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text;                  // of a scalar
  bool quoted = false;               // a scalar in quotes: text, whatever it looks like
  int line = 0;                      // 1-based; 0 on the command line
  std::vector<ConfigNode> items;     // of a list
  std::vector<ConfigEntry> entries;  // of a map, in the file's order; keys are distinct

  static ConfigNode scalar(std::string text, bool quoted, int line);
};

struct ConfigEntry {
  std::string key;
  ConfigNode value;
};

// Reads one document whose top is a map. Throws usage errors with "name:line": syntax, a key given twice, YAML merge
// keys
// (`<<`), keys that are no scalars, a second document, unknown tags, text that is not UTF-8, and nesting or expansion
// of aliases beyond any run file's.
ConfigNode parse_yaml(std::string_view text, const std::string& name);
// The same for strict JSON.
ConfigNode parse_json_tree(std::string_view text, const std::string& name);
// Any YAML value (a flow map or list given on the command line).
ConfigNode parse_yaml_value(std::string_view text, const std::string& name);

// The value as JSON; plain scalars are typed as YAML 1.2's core schema types them (`1e-5` is a number, `yes` is text).
Json to_json(const ConfigNode& node);

// Whether `text` is valid UTF-8 without NUL.
bool is_clean_utf8(std::string_view text);

}  // namespace convoy
