// Communication among the ranks of a group as operations of the graph. The executor runs them through a Communicator;
// devices have no kernels for them.
//
// A started operation runs beside the instructions that follow. Until the wait of the same number its buffers belong to
// it: that is why a wait takes them as inputs.
#pragma once

#include <vector>

#include "base/shard_cut.h"
#include "graph/op.h"

namespace convoy {

// What the executor asks to tell these operations from the devices'.
struct CollectiveOp : Op {
  explicit CollectiveOp(int channel) : number(channel) {}
  std::string attributes() const override;
  int number;  // of the start and its wait, unique in a program
};

// (whole tensors …) → this rank's shards of their sums over the ranks, flat.
struct ReduceScatterStart final : CollectiveOp {
  ReduceScatterStart(int channel, int of_rank, std::vector<ShardCut> shards)
      : CollectiveOp(channel), rank(of_rank), cuts(std::move(shards)) {}
  std::string_view name() const override { return "reduce_scatter"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  int rank;
  std::vector<ShardCut> cuts;
};

// (this rank's shards …) → the whole tensors, with the given shapes.
struct AllGatherStart final : CollectiveOp {
  AllGatherStart(int channel, std::vector<ShardCut> shards, std::vector<Shape> whole)
      : CollectiveOp(channel), cuts(std::move(shards)), shapes(std::move(whole)) {}
  std::string_view name() const override { return "all_gather"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<ShardCut> cuts;
  std::vector<Shape> shapes;
};

// (tensors …) → their sums over the ranks, in place.
struct AllReduceStart final : CollectiveOp {
  AllReduceStart(int channel, int tensors) : CollectiveOp(channel), count(tensors) {}
  std::string_view name() const override { return "all_reduce"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override;
  int count;
};

// (the buffers of the started operation …) → nothing.
struct CollectiveWait final : CollectiveOp {
  using CollectiveOp::CollectiveOp;
  std::string_view name() const override { return "wait"; }
  std::vector<TensorSpec> infer(Specs) const override { return {}; }
};

}  // namespace convoy
