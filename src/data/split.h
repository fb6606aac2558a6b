// Which documents are trained on and which are held out.
#pragma once

#include <cstdint>
#include <vector>

namespace convoy {

using DocumentId = std::uint32_t;  // index into TokenData

struct SplitOptions {
  // At most one of the two is set; neither: nothing is held out.
  double validation_fraction = 0;  // in [0, 1); rounded to the nearest whole document, at least one when above 0
  std::int64_t validation_count = 0;
  std::uint64_t seed = 0;
};

// Both ascending; together every document once.
struct Split {
  std::vector<DocumentId> train, validation;
};

// A function of the number of documents, the options and nothing else. Throws a usage error for settings out of range
// and a data error where nothing would be left to train on.
Split split_documents(std::int64_t documents, const SplitOptions& options);

// 0 … documents − 1.
std::vector<DocumentId> all_documents(std::int64_t documents);

// The order in which an epoch visits `documents`: a function of (seed, epoch) alone.
std::vector<DocumentId> epoch_order(const std::vector<DocumentId>& documents, std::uint64_t seed, std::int64_t epoch);

}  // namespace convoy
