// Copies between the device's memory and the host's as operations of the graph: what is offloaded goes out and comes
// back beside the computation. The executor runs them through the device's copy lanes.
//
// As with collective operations, a started copy belongs to the wait of the same number, which takes its buffers as
// inputs: until then neither side may be used for anything else.
#pragma once

#include "graph/op.h"

namespace convoy {

// What the executor asks to tell these operations from the devices' own.
struct HostCopyOp : Op {
  explicit HostCopyOp(int of) : number(of) {}
  std::string attributes() const override;
  int number;  // of the start and its wait, unique in a program
};

// (tensors in the device's memory …) → the same in the host's. Whoever makes the node gives the outputs a role whose
// arena lies there.
struct OffloadStart final : HostCopyOp {
  using HostCopyOp::HostCopyOp;
  std::string_view name() const override { return "offload"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
};

// (tensors in the host's memory …) → the same in the device's.
struct FetchStart final : HostCopyOp {
  using HostCopyOp::HostCopyOp;
  std::string_view name() const override { return "fetch"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  Cost cost(Specs in, std::span<const TensorSpec> out) const override;
};

// (the buffers of the started copy, on both sides …) → nothing.
struct HostCopyWait final : HostCopyOp {
  using HostCopyOp::HostCopyOp;
  std::string_view name() const override { return "wait"; }
  std::vector<TensorSpec> infer(Specs) const override { return {}; }
  Cost cost(Specs, std::span<const TensorSpec>) const override { return {}; }
};

}  // namespace convoy
