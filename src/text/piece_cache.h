// A bounded cache of encoded pieces, one per thread: text repeats its words, so most pieces are found here.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace convoy {

// Direct-mapped; an entry is one cache line. Longer pieces and results are not kept.
class PieceCache {
 public:
  static constexpr std::size_t kLongestPiece = 26;
  static constexpr std::size_t kMostIds = 8;

  static bool fits(std::string_view piece) { return piece.size() <= kLongestPiece; }
  static std::uint64_t hash(std::string_view piece);

  // The cached ids, empty if there are none. `piece` fits.
  std::span<const TokenId> find(std::string_view piece, std::uint64_t hash) const {
    const Slot& slot = slots_[hash & (kSlots - 1)];
    if (slot.length != piece.size() || std::memcmp(slot.key, piece.data(), piece.size()) != 0) return {};
    return {slot.ids, slot.count};
  }
  void put(std::string_view piece, std::uint64_t hash, std::span<const TokenId> ids);

  // The calling thread's cache of the model with this key (keys are never used twice).
  static PieceCache& of_thread(std::uint64_t model);

 private:
  static constexpr std::size_t kSlots = std::size_t{1} << 14;
  struct alignas(64) Slot {
    TokenId ids[kMostIds] = {};
    std::uint8_t length = 0;
    std::uint8_t count = 0;
    char key[kLongestPiece] = {};
  };
  std::vector<Slot> slots_;
  std::uint64_t model_ = 0;
  std::uint64_t last_use_ = 0;
};

inline std::uint64_t PieceCache::hash(std::string_view piece) {
  const char* p = piece.data();
  const std::size_t n = piece.size();
  std::uint64_t a = 0, b = 0, c = 0;
  if (n >= 8) {
    std::memcpy(&a, p, 8);
    std::memcpy(&b, p + n - 8, 8);
    if (n > 16) std::memcpy(&c, p + 8, 8);
  } else if (n >= 4) {
    std::memcpy(&a, p, 4);
    std::memcpy(&b, p + n - 4, 4);
  } else if (n > 0) {
    a = static_cast<std::uint8_t>(p[0]) | static_cast<std::uint64_t>(static_cast<std::uint8_t>(p[n / 2])) << 8 |
        static_cast<std::uint64_t>(static_cast<std::uint8_t>(p[n - 1])) << 16;
  }
  std::uint64_t h = (a + n) * 0x9E3779B97F4A7C15u;
  h = (h ^ (h >> 32) ^ b) * 0xD6E8FEB86659FD93u;
  h = (h ^ (h >> 32) ^ c) * 0xD6E8FEB86659FD93u;
  return h ^ (h >> 32);
}

}  // namespace convoy
