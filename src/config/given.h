// What a run file or a command line gives, before it is put into a RunConfig.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "config/config_node.h"
#include "config/key_registry.h"

namespace convoy {

struct Given {
  const Key* key = nullptr;
  std::string written;  // the name as it was given
  ConfigNode node;
  std::string where;  // "run.yaml:12" or "--learning_rate"
};

// The pairs of a run file's tree. Unknown keys, and a key under two of its names, are usage errors.
std::vector<Given> given_by_file(const ConfigNode& root, const std::string& name);

struct CommandLine {
  std::vector<Given> flags;  // a flag given twice is here twice
  std::string run_file;      // empty if none
};
CommandLine parse_flags(const std::vector<std::string>& args);

// Checks and converts; usage errors name the key, the place and what is accepted.
SettingValue convert_value(const Given& given);
// "a whole number of at least 1", "one of pack, pad, concat": what a key accepts.
std::string accepted_values(const Key& key);
// A value as YAML, as convert_value reads it.
std::string value_text(const Key& key, const SettingValue& value);
// null, false, 0, no, none, or empty.
bool is_off(const ConfigNode& node);

Error unknown_key(const std::string& name, const std::string& where);

}  // namespace convoy
