// `convoy evaluate`: a model on data, without training it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/json.h"
#include "comm/communicator.h"
#include "config/run_config.h"
#include "runtime/device.h"

namespace convoy {

struct EvaluateOptions {
  bool all_targets = false;  // every token of the text counts, not only those that training would learn
  std::optional<std::filesystem::path> output;  // JSON of the results, written by the first rank
};

// What is wrong before any rank starts. Throws usage errors.
void check_evaluation_inputs(const RunConfig& config);

// Evaluates `config.model` on validation_files, or on what validation_split sets aside, prints the results and returns
// the exit status. All ranks call with the same settings. Throws a does-not-fit error before anything is read.
int run_evaluation(const RunConfig& settings, const EvaluateOptions& options, Device& device,
                   const std::string& version, Communicator& communicator);

// What `convoy evaluate --plan` prints: the memory of every rank. Reads no weight and no data; ends in "fits\n" or
// "does not fit\n".
std::string plan_evaluation(const RunConfig& config, Device& device);

}  // namespace convoy
