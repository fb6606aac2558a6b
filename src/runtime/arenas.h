// The arenas of one rank: taken once, at the planned size, before the first step.
#pragma once

#include <array>
#include <vector>

#include "runtime/device.h"

namespace convoy {

struct ArenaSizes {
  std::array<std::size_t, kRoleCount> bytes{};  // by role; gradients for one slot
  std::size_t gradient_slots = 1;               // partial sums over micro-batches that are alive at once
  std::size_t workspace = 0;
  std::array<bool, kRoleCount> offloaded{};  // by role: in host memory, whatever the device's is
  // Of the device's memory, and of the host's that is beside it.
  std::size_t total() const;
  std::size_t host_total() const;
};

class Arenas {
 public:
  Arenas(Device& device, const ArenaSizes& sizes);
  std::byte* base(Role role, std::size_t gradient_slot = 0) const;
  std::byte* workspace() const { return workspace_ ? workspace_->data() : nullptr; }
  const ArenaSizes& sizes() const { return sizes_; }

 private:
  ArenaSizes sizes_;
  std::array<std::unique_ptr<DeviceMemory>, kRoleCount> memory_;
  std::vector<std::unique_ptr<DeviceMemory>> gradients_;
  std::unique_ptr<DeviceMemory> workspace_;
};

}  // namespace convoy
