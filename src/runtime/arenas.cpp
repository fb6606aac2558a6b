#include "runtime/arenas.h"

namespace convoy {

std::size_t ArenaSizes::total() const {
  std::size_t sum = workspace;
  for (std::size_t role = 0; role < bytes.size(); ++role) {
    if (!offloaded[role]) sum += bytes[role] * (role == static_cast<std::size_t>(Role::kGradient) ? gradient_slots : 1);
  }
  return sum;
}

std::size_t ArenaSizes::host_total() const {
  std::size_t sum = 0;
  for (std::size_t role = 0; role < bytes.size(); ++role) sum += offloaded[role] ? bytes[role] : 0;
  return sum;
}

Arenas::Arenas(Device& device, const ArenaSizes& sizes) : sizes_(sizes) {
  for (std::size_t role = 0; role < sizes.bytes.size(); ++role) {
    if (sizes.bytes[role] == 0) continue;
    if (role == static_cast<std::size_t>(Role::kGradient)) {
      for (std::size_t slot = 0; slot < sizes.gradient_slots; ++slot)
        gradients_.push_back(device.allocate(sizes.bytes[role]));
    } else {
      memory_[role] =
          sizes.offloaded[role] ? device.allocate_host(sizes.bytes[role]) : device.allocate(sizes.bytes[role]);
    }
  }
  if (sizes.workspace > 0) workspace_ = device.allocate(sizes.workspace);
}

std::byte* Arenas::base(Role role, std::size_t gradient_slot) const {
  if (role == Role::kGradient) return gradient_slot < gradients_.size() ? gradients_[gradient_slot]->data() : nullptr;
  const auto& memory = memory_[static_cast<std::size_t>(role)];
  return memory ? memory->data() : nullptr;
}

}  // namespace convoy
