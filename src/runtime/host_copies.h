// The graph's copies between device and host memory as kernels over the device's copy lanes.
#pragma once

#include <map>
#include <memory>

#include "graph/ops/host_copy.h"
#include "runtime/device.h"

namespace convoy {

// Prepares the host copies of one program.
class HostCopies {
 public:
  explicit HostCopies(Device& device) : device_(device) {}
  std::unique_ptr<Kernel> prepare(const HostCopyOp& op, std::span<const TensorSpec> outputs);

 private:
  Device& device_;
  std::map<int, std::shared_ptr<Device::Mark>> done_;  // by the operations' numbers
};

}  // namespace convoy
