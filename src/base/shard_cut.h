// How a tensor is cut over the ranks of a group.
#pragma once

#include <algorithm>
#include <cstdint>

namespace convoy {

// A tensor of `numel` elements cut into one contiguous shard per rank: rank r owns the elements
// [min(numel, r·shard), min(numel, (r+1)·shard)). A shard may be empty.
struct ShardCut {
  std::int64_t numel = 0;
  std::int64_t shard = 0;
  std::int64_t begin(int rank) const { return std::min(numel, rank * shard); }
  std::int64_t end(int rank) const { return std::min(numel, (rank + std::int64_t{1}) * shard); }
  std::int64_t length(int rank) const { return end(rank) - begin(rank); }
  friend bool operator==(const ShardCut&, const ShardCut&) = default;
};

// Shards as equal as whole units allow.
inline ShardCut cut_evenly(std::int64_t numel, std::int64_t unit, int ranks) {
  const std::int64_t units = (numel + unit - 1) / unit;
  return {numel, (units + ranks - 1) / ranks * unit};
}

}  // namespace convoy
