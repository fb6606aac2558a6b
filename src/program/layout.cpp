#include "program/layout.h"

#include <fmt/format.h>

#include "passes/lifetimes.h"

namespace convoy {

void Layout::add(Role role, const std::string& name, const TensorSpec& spec) {
  auto& slots = slots_[static_cast<std::size_t>(role)];
  auto& index = index_[static_cast<std::size_t>(role)];
  const auto [place, added] = index.try_emplace(name, slots.size());
  if (added) {
    slots.push_back({name, spec, bytes(role)});
    return;
  }
  Slot& slot = slots[place->second];
  if (slot.spec == spec) return;
  if (role != Role::kBatch)
    throw internal_error(fmt::format("{} '{}' is {} and {}", name_of(role), name, slot.spec.str(), spec.str()));
  if (spec.bytes() <= slot.spec.bytes()) return;
  slot.spec = spec;
  std::size_t offset = 0;
  for (Slot& each : slots) {
    each.offset = offset;
    offset += aligned(each.spec.bytes());
  }
}

void Layout::add_view(Role role, const std::string& name, const std::string& whole, const TensorSpec& spec,
                      std::int64_t first) {
  check(role != Role::kBatch, "batch data has no views: it may move");
  const Slot& slot = find(role, whole);
  check(slot.spec.dtype == spec.dtype && first + spec.numel() <= slot.spec.numel(), "a view beyond its tensor");
  const std::size_t offset = slot.offset + static_cast<std::size_t>(first) * size_of(spec.dtype);
  views_[static_cast<std::size_t>(role)][name] = {name, spec, offset};
}

const Slot& Layout::find(Role role, const std::string& name) const {
  const auto& views = views_[static_cast<std::size_t>(role)];
  if (const auto view = views.find(name); view != views.end()) return view->second;
  const auto& index = index_[static_cast<std::size_t>(role)];
  const auto place = index.find(name);
  if (place == index.end()) throw internal_error(fmt::format("no {} named '{}' in the layout", name_of(role), name));
  return slots_[static_cast<std::size_t>(role)][place->second];
}

bool Layout::contains(Role role, const std::string& name) const {
  return index_[static_cast<std::size_t>(role)].contains(name) || views_[static_cast<std::size_t>(role)].contains(name);
}

std::size_t Layout::bytes(Role role) const {
  const auto& slots = slots_[static_cast<std::size_t>(role)];
  return slots.empty() ? 0 : slots.back().offset + aligned(slots.back().spec.bytes());
}

}  // namespace convoy
