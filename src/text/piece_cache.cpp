#include "text/piece_cache.h"

#include <algorithm>
#include <array>

namespace convoy {

void PieceCache::put(std::string_view piece, std::uint64_t hash, std::span<const TokenId> ids) {
  if (ids.empty() || ids.size() > kMostIds) return;
  Slot& slot = slots_[hash & (kSlots - 1)];
  slot.length = static_cast<std::uint8_t>(piece.size());
  slot.count = static_cast<std::uint8_t>(ids.size());
  std::copy(piece.begin(), piece.end(), slot.key);
  std::copy(ids.begin(), ids.end(), slot.ids);
}

PieceCache& PieceCache::of_thread(std::uint64_t model) {
  // A thread seldom uses more than two tokenizers in turn (a model's, and a reference's).
  thread_local std::array<PieceCache, 2> caches;
  thread_local std::uint64_t clock = 0;
  ++clock;
  PieceCache* oldest = &caches[0];
  for (PieceCache& cache : caches) {
    if (cache.model_ == model) {
      cache.last_use_ = clock;
      return cache;
    }
    if (cache.last_use_ < oldest->last_use_) oldest = &cache;
  }
  oldest->slots_.assign(kSlots, Slot{});
  oldest->model_ = model;
  oldest->last_use_ = clock;
  return *oldest;
}

}  // namespace convoy
