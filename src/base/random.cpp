#include "base/random.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace convoy {
namespace {
__extension__ using Wide = unsigned __int128;
}  // namespace

std::uint32_t RandomStream::bits() {
  if (used_ == 4) {
    buffer_ = philox({static_cast<std::uint32_t>(block_), static_cast<std::uint32_t>(block_ >> 32),
                      static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
                     key_);
    ++block_;
    used_ = 0;
  }
  return buffer_[static_cast<std::size_t>(used_++)];
}

std::uint64_t RandomStream::below(std::uint64_t n) {
  const std::uint64_t threshold = (0 - n) % n;
  for (;;) {
    const auto product = static_cast<Wide>(bits64()) * n;
    if (static_cast<std::uint64_t>(product) >= threshold) return static_cast<std::uint64_t>(product >> 64);
  }
}

float RandomStream::normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double u = (static_cast<double>(bits()) + 1.0) * 0x1p-32;  // (0, 1]
  const double v = static_cast<double>(bits()) * 0x1p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 2.0 * std::numbers::pi * v;
  spare_ = static_cast<float>(radius * std::sin(angle));
  has_spare_ = true;
  return static_cast<float>(radius * std::cos(angle));
}

std::vector<std::uint64_t> permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t stream) {
  std::vector<std::uint64_t> order(n);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  RandomStream random(seed, stream);
  for (std::uint64_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace convoy
