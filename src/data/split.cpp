#include "data/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace convoy {
namespace {

// Epochs take the streams from 0; this one is out of their way.
constexpr std::uint64_t kSplitStream = std::uint64_t{1} << 63;

}  // namespace

std::vector<DocumentId> all_documents(std::int64_t documents) {
  if (documents > std::int64_t{std::numeric_limits<DocumentId>::max()})
    throw data_error(fmt::format("{} documents are more than 2^32 - 1", documents)).mend("join short ones");
  std::vector<DocumentId> all(static_cast<std::size_t>(documents));
  std::iota(all.begin(), all.end(), DocumentId{0});
  return all;
}

Split split_documents(std::int64_t documents, const SplitOptions& options) {
  const double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1))
    throw usage_error(fmt::format("a validation fraction of {} is not in [0, 1)", fraction));
  if (options.validation_count < 0)
    throw usage_error(fmt::format("a validation count of {} is negative", options.validation_count));
  if (fraction > 0 && options.validation_count > 0)
    throw usage_error("both a fraction and a number of documents are to be held out").mend("set one of them");
  std::int64_t held_out = options.validation_count;
  if (fraction > 0) {
    held_out = std::max<std::int64_t>(1, std::llround(fraction * static_cast<double>(documents)));
  }
  if (held_out > 0 && held_out >= documents) {
    throw data_error(fmt::format("holding out {} of {} documents leaves none to train on", held_out, documents))
        .mend("hold out fewer, or name a file of validation data");
  }
  Split split;
  if (held_out == 0) {
    split.train = all_documents(documents);
    return split;
  }
  const std::vector<DocumentId> all = all_documents(documents);
  const std::vector<std::uint64_t> order = permutation(all.size(), options.seed, kSplitStream);
  for (std::size_t i = 0; i < order.size(); ++i) {
    auto& part = static_cast<std::int64_t>(i) < held_out ? split.validation : split.train;
    part.push_back(static_cast<DocumentId>(order[i]));
  }
  std::sort(split.train.begin(), split.train.end());
  std::sort(split.validation.begin(), split.validation.end());
  return split;
}

std::vector<DocumentId> epoch_order(const std::vector<DocumentId>& documents, std::uint64_t seed, std::int64_t epoch) {
  std::vector<DocumentId> order;
  order.reserve(documents.size());
  for (const std::uint64_t i : permutation(documents.size(), seed, static_cast<std::uint64_t>(epoch)))
    order.push_back(documents[i]);
  return order;
}

}  // namespace convoy
