// The graph's collective operations as kernels over a Communicator.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "graph/ops/collective.h"
#include "runtime/device.h"

namespace convoy {

// Prepares the collective operations of one program.
class Collectives {
 public:
  Collectives(Device& device, Communicator* communicator) : device_(device), communicator_(communicator) {}
  std::unique_ptr<Kernel> prepare(const CollectiveOp& op, Specs inputs, std::span<const TensorSpec> outputs);

  // What the wait of an operation copies back into the device's memory.
  struct Back {
    std::byte* device;
    const std::byte* host;
    std::size_t bytes;
  };
  struct Started {
    Communicator::Ticket ticket = 0;
    std::vector<Back> back;
  };

 private:
  Device& device_;
  Communicator* communicator_;
  std::map<int, std::shared_ptr<Started>> started_;  // by the operations' numbers
};

}  // namespace convoy
