// The graph's collective operations as kernels over a Communicator.
#pragma once

#include <map>
#include <memory>

#include "comm/communicator.h"
#include "graph/ops/collective.h"
#include "runtime/device.h"

namespace convoy {

// Prepares the collective operations of one program.
class Collectives {
 public:
  explicit Collectives(Communicator* communicator) : communicator_(communicator) {}
  std::unique_ptr<Kernel> prepare(const CollectiveOp& op, Specs inputs, std::span<const TensorSpec> outputs);

 private:
  Communicator* communicator_;
  std::map<int, std::shared_ptr<Communicator::Ticket>> tickets_;  // by the operations' numbers
};

}  // namespace convoy
