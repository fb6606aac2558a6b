// Ranks that a launcher or a user started one by one may have been told different things. They would still train: each
// something of its own. What has to be alike is compared with the first rank's before anything is computed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "data/token_data.h"
#include "train/run_data.h"
#include "train/run_setup.h"

namespace convoy {

// A name and its value as text, neither with a line break that matters.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Throws a usage error on every rank whose facts are not those of the first: it names each that differs, with both
// values. All ranks must call. `remedy`: what to do about it.
void require_agreement(const Facts& facts, const std::string& remedy, Communicator& communicator);

// Digests of config.json, of the stored weights (headers, and samples of every tensor), of the tokenizer and the rows.
Facts shared_inputs(const ModelSource& source, const Tokenizer& tokenizer, const RunData& data);

}  // namespace convoy
