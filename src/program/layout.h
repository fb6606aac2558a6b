// Where the persistent tensors of a rank lie: weights, gradients, master weights, moments and what the host sets.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace convoy {

struct Slot {
  std::string name;
  TensorSpec spec;
  std::size_t offset = 0;  // bytes into the role's arena
};

class Layout {
 public:
  // Adds a tensor at the end of its role's arena, 64-byte aligned. A name already there must have the same
  // specification, or in the role of batch data may grow: the larger one counts.
  void add(Role role, const std::string& name, const TensorSpec& spec);
  // Names a part of a tensor that is there: `spec` from element `first` of `whole` on. Takes no room.
  void add_view(Role role, const std::string& name, const std::string& whole, const TensorSpec& spec,
                std::int64_t first);
  // Offsets are final only after the last add.
  const Slot& find(Role role, const std::string& name) const;
  bool contains(Role role, const std::string& name) const;
  // Without the views.
  const std::vector<Slot>& slots(Role role) const { return slots_[static_cast<std::size_t>(role)]; }
  std::size_t bytes(Role role) const;

 private:
  std::array<std::vector<Slot>, kRoleCount> slots_;
  std::array<std::map<std::string, std::size_t>, kRoleCount> index_;
  std::array<std::map<std::string, Slot>, kRoleCount> views_;
};

}  // namespace convoy
