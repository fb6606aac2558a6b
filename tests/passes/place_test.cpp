#include "passes/place.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace convoy {
namespace {

Lifetimes random_lifetimes(std::uint64_t seed, std::size_t count, std::int32_t nodes) {
  RandomStream random(seed, 0);
  Lifetimes made;
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(nodes)));
    const auto last = std::min<std::int32_t>(nodes - 1, first + static_cast<std::int32_t>(random.below(12)));
    made.buffers.push_back({aligned(1 + random.below(1 << 14)), first, last, {}});
  }
  return made;
}

void expect_sound(const Lifetimes& lives, const Placement& placement) {
  for (std::size_t a = 0; a < lives.buffers.size(); ++a) {
    EXPECT_LE(placement.offsets[a] + lives.buffers[a].bytes, placement.bytes);
    EXPECT_EQ(placement.offsets[a] % kAlignment, 0u);
    for (std::size_t b = 0; b < a; ++b) {
      const Buffer& x = lives.buffers[a];
      const Buffer& y = lives.buffers[b];
      if (x.last < y.first || y.last < x.first) continue;
      const bool apart = placement.offsets[a] + x.bytes <= placement.offsets[b] ||
                         placement.offsets[b] + y.bytes <= placement.offsets[a];
      EXPECT_TRUE(apart) << a << " and " << b << " overlap";
    }
  }
}

TEST(Place, NoTwoLiveBuffersOverlap) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Lifetimes lives = random_lifetimes(seed, 120, 60);
    const Placement placement = place(lives, 60);
    expect_sound(lives, placement);
    EXPECT_GE(placement.bytes, placement.lower_bound);
    EXPECT_LE(static_cast<double>(placement.bytes), 1.25 * static_cast<double>(placement.lower_bound));
  }
}

TEST(Place, NestedLifetimesReachTheBound) {
  Lifetimes lives;
  for (std::int32_t i = 0; i < 30; ++i)
    lives.buffers.push_back({static_cast<std::size_t>(64 * (i + 1)), i, 99 - i, {}});
  const Placement placement = place(lives, 100);
  expect_sound(lives, placement);
  EXPECT_EQ(placement.bytes, placement.lower_bound);
}

TEST(Place, IsTheSameEveryTime) {
  const Lifetimes lives = random_lifetimes(5, 200, 80);
  EXPECT_EQ(place(lives, 80).offsets, place(lives, 80).offsets);
}

TEST(Place, NothingTakesNothing) {
  EXPECT_EQ(place({}, 0).bytes, 0u);
}

}  // namespace
}  // namespace convoy
