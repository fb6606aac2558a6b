// Every key of DeepSpeed's configuration that Convoy knows, with what becomes of it. Parsing, docs/deepspeed.md and the
// test that walks all keys read this one table.
#pragma once

#include <string>
#include <vector>

namespace convoy {

struct DeepSpeedKey {
  enum class Verdict {
    kKey,      // the same as a key of the run file
    kHandled,  // has an effect that is not one key's
    kNoted,    // accepted without effect, with the reason
    kRefused,  // refused where it is switched on
  };
  const char* path;  // "zero_optimization.stage"; "*" stands for any name
  Verdict verdict;
  const char* target;  // the key of the run file, or "".
  const char* text;    // meaning, reason or remedy
  const char* sample;  // a value as JSON that shows it (for the refused: one that is refused)
};

const std::vector<DeepSpeedKey>& deepspeed_keys();
// The table of docs/deepspeed.md.
std::string deepspeed_reference();

}  // namespace convoy
