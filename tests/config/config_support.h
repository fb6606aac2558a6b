// Helpers of the run file's tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "config/run_config.h"

namespace convoy {

// The text of the usage error that `action` throws.
template <typename Action>
std::string usage_message(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kUsage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline std::string text_error(const std::string& text, const std::string& name = "run.yaml") {
  return usage_message([&] { parse_run_text(text, name); });
}
inline std::string flag_error(const std::vector<std::string>& args) {
  return usage_message([&] { parse_run_config(args); });
}

// Whether a note holds `part`.
inline bool has_note(const RunConfig& config, const std::string& part) {
  for (const std::string& note : config.notes) {
    if (note.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace convoy
