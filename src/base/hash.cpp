#include "base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace convoy {

struct Hasher::State {
  XXH3_state_t* xxh = nullptr;
};

std::uint64_t hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}
std::uint64_t hash64(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}
std::string hex64(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

Hasher::Hasher() : state_(std::make_unique<State>()) {
  state_->xxh = XXH3_createState();
  XXH3_64bits_reset(state_->xxh);
}
Hasher::~Hasher() {
  XXH3_freeState(state_->xxh);
}
void Hasher::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}
std::uint64_t Hasher::value() const {
  return XXH3_64bits_digest(state_->xxh);
}

}  // namespace convoy
