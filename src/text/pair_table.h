// A fast map from pairs of token ids to the rank of their merge.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace convoy {

class PairTable {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  // Room for `pairs` pairs at a load of at most one half.
  void reset(std::size_t pairs) {
    const std::size_t slots = std::bit_ceil(pairs * 2 + 16);
    slots_.assign(slots, Slot{});
    shift_ = static_cast<unsigned>(64 - std::countr_zero(slots));
  }
  // A later rank of the same pair replaces the earlier one.
  void put(TokenId left, TokenId right, std::uint32_t rank) {
    const std::uint64_t key = key_of(left, right);
    std::size_t i = home(key);
    while (slots_[i].rank != kNone && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {key, rank};
  }
  std::uint32_t find(TokenId left, TokenId right) const {
    const std::uint64_t key = key_of(left, right);
    std::size_t i = home(key);
    while (slots_[i].key != key) {
      if (slots_[i].rank == kNone) return kNone;
      i = (i + 1) & (slots_.size() - 1);
    }
    return slots_[i].rank;
  }

 private:
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    std::uint32_t rank = kNone;
  };
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
  }
  // The product's high bits depend on all of the key; folding them spreads keys whose left ids are close.
  std::size_t home(std::uint64_t key) const {
    return static_cast<std::size_t>(((key ^ (key >> 29)) * 0x9E3779B97F4A7C15u) >> shift_);
  }
  std::vector<Slot> slots_ = std::vector<Slot>(2);
  unsigned shift_ = 63;
};

}  // namespace convoy
