// ZeRO (Rajbhandari et al., 2020) as passes: who holds what of each parameter, and the communication that follows.
// Stage 1 shards optimizer state, stage 2 gradients too, stage 3 weights too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/shard_cut.h"
#include "graph/graph.h"

namespace convoy {

// DeepSpeed's names and units (elements).
struct ZeroOptions {
  int stage = 0;
  int world = 1;  // data-parallel ranks
  int rank = 0;
  std::int64_t reduce_bucket = 500'000'000;         // reduce_bucket_size
  std::int64_t gather_bucket = 500'000'000;         // allgather_bucket_size
  bool overlap = true;                              // overlap_comm
  std::int64_t prefetch_bucket = 50'000'000;        // stage3_prefetch_bucket_size
  std::int64_t persistence_threshold = 100'000;     // stage3_param_persistence_threshold
  std::int64_t max_live = 1'000'000'000;            // stage3_max_live_parameters
  std::int64_t max_reuse_distance = 1'000'000'000;  // stage3_max_reuse_distance
  // offload_param: weights lie in host memory between their uses (passes/fetch.h). Where they are sharded, small ones
  // too: communication reaches the device's memory only.
  bool offload_param = false;

  DType wire = DType::kF32;  // what gradients are sent as (gradient_compression, communication_data_type)
  bool one_bit = false;      // stage 0: gradients are sent as signs, with error feedback

  // Whether gradients of this type change it on their way; those that are no wider than the wire do not.
  bool converts(DType gradient) const {
    return world > 1 && !one_bit && wire != DType::kF32 && size_of(wire) < size_of(gradient);
  }
  bool shards_state() const { return world > 1 && stage >= 1; }
  bool shards_gradients() const { return world > 1 && stage >= 2; }
  bool shards_weights() const { return world > 1 && stage >= 3; }
  // Whether a weight of so many elements is held as a shard between uses.
  bool shards_weight(std::int64_t numel) const {
    return shards_weights() && (offload_param || numel >= persistence_threshold);
  }
};

// Where a tensor of `numel` elements is cut; the same for weight, gradient and optimizer state. The borders are those
// of norm_block.
ShardCut zero_cut(std::int64_t numel, int world);

// The storage name of this rank's shard of a weight or gradient.
std::string shard_name(const std::string& parameter);

// Stage 2 and 3, on an ordered graph: a gradient that is complete goes, in buckets, through a reduce-scatter into this
// rank's shards; the whole gradients become activations. A bucket closes when it reaches reduce_bucket elements or its
// transformer block is done; the next one waits for it, so at most one is under way.
void shard_gradients(Graph& graph, const ZeroOptions& options);

// Stage 3, on an ordered graph: weights are sources of shards; each is gathered before its uses and its memory is free
// after them, unless it is used again within max_reuse_distance elements and no more than max_live are held. The gather
// of what the next block needs starts ahead while it has at most prefetch_bucket elements.
void gather_weights(Graph& graph, const ZeroOptions& options);

// Buckets of consecutive tensors with at most `limit` elements each (a larger tensor is one of its own): the first
// index of every bucket, and the end.
std::vector<std::size_t> cut_buckets(const std::vector<std::int64_t>& numels, std::int64_t limit);

}  // namespace convoy
