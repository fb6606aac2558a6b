// Small models and random batches for tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/engine.h"

namespace convoy::testing {

// The configurations of tiny models of every family, by name.
std::vector<std::string> tiny_families();
Json tiny_config(const std::string& family);

struct RandomBatch {
  std::vector<std::int32_t> ids, targets, positions, seq_start;
  std::vector<std::uint64_t> keys;
  // A decision for each row, between two of its tokens.
  std::vector<std::int32_t> head_rows, head_labels;
  std::vector<std::uint64_t> head_keys;
  std::int64_t target_count = 0;
  BatchView view() const { return {ids, targets, positions, seq_start, keys, head_rows, head_labels, head_keys}; }
};

// Rows of packed documents of random lengths, some targets missing. `first_row` numbers the rows, so that a batch of 4
// rows equals the batches of its rows one after the other.
RandomBatch random_batch(std::int64_t rows, std::int64_t seq, std::int64_t vocab, std::int64_t first_row = 0);

}  // namespace convoy::testing
