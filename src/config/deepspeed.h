// A DeepSpeed configuration as settings of the run file.
#pragma once

#include <string>
#include <vector>

#include "config/given.h"

namespace convoy {

struct DeepSpeedSettings {
  std::vector<Given> given;           // values of run-file keys; "auto" gives none
  std::vector<std::string> notes;     // what has no effect and why
  std::vector<std::string> warnings;  // sections that look like slips of the pen
  std::vector<std::string> filled;    // run-file keys that "auto" takes as they are, defaults too
};

// `config`: the value of the key `deepspeed`, a path, JSON text, base64 of it, or a map. Throws usage errors that name
// the key, the place and the remedy.
DeepSpeedSettings read_deepspeed(const ConfigNode& config, const std::string& where);

}  // namespace convoy
