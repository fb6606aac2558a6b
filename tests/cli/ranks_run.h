// The tiny run on several ranks, for tests of layouts and of faults.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "tiny_run.h"

namespace convoy::testing {

class RanksRun : public TinyRun {
 protected:
  // The tiny run with a global batch of 4 micro-batches on so many ranks.
  std::vector<std::string> on(int ranks, const std::string& output, std::vector<std::string> more = {}) const {
    more.insert(more.begin(),
                {"--num_processes", std::to_string(ranks), "--gradient_accumulation_steps", std::to_string(4 / ranks),
                 "--threads", "1", "--stage3_param_persistence_threshold", "100"});
    return words(output, more);
  }
  std::string weights(const std::string& run) const { return read_file(run + "/model.safetensors"); }
  static std::vector<double> losses(const std::string& run) {
    std::vector<double> all;
    const Json state = read_json(run + "/trainer_state.json");
    for (const Json& entry : state["log_history"]) {
      if (entry.contains("loss")) all.push_back(entry["loss"]);
    }
    EXPECT_EQ(all.size(), 12u);
    return all;
  }
};

}  // namespace convoy::testing
