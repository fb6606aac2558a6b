// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11).
// A number is a pure function of (key, counter): the same on every rank, device and thread count.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace convoy {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline PhiloxCounter philox(PhiloxCounter c, PhiloxKey k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

// 32 random bits to [0, 1), 24 bits of resolution.
inline float to_unit(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

inline PhiloxKey philox_key(std::uint64_t seed) {
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
}

// The random numbers that an element's 16-bit state is rounded with in an optimizer step, 16 bits each.
struct RoundingBits {
  std::uint32_t moment[2], weight;
};
// One block of random numbers serves the four elements of a quad: elements 4 quad … 4 quad + 3.
inline PhiloxCounter rounding_block(std::uint64_t seed, std::uint32_t tensor, std::uint64_t quad, std::uint32_t step) {
  return philox({static_cast<std::uint32_t>(quad), static_cast<std::uint32_t>(quad >> 32), tensor, step},
                philox_key(seed));
}
inline RoundingBits rounding_bits(const PhiloxCounter& block, std::int64_t element) {
  // The weight's bits come from the neighbour's word: used there for another number, which does no harm to the mean.
  const std::uint32_t own = block[static_cast<std::size_t>(element % 4)],
                      other = block[static_cast<std::size_t>((element + 1) % 4)];
  return {{own & 0xffffu, own >> 16}, (other * 0x9E3779B9u) >> 16};
}

// A sequential stream over one Philox key and stream number, for host-side uses (initialisation, shuffling, sampling).
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream) : key_(philox_key(seed)), stream_(stream) {}
  std::uint32_t bits();
  std::uint64_t bits64() { return (std::uint64_t{bits()} << 32) | bits(); }
  float uniform() { return to_unit(bits()); }
  // Uniform in [0, n), n > 0, without modulo bias (Lemire).
  std::uint64_t below(std::uint64_t n);
  // Standard normal (Box-Muller).
  float normal();

 private:
  PhiloxKey key_;
  std::uint64_t stream_;
  std::uint64_t block_ = 0;
  PhiloxCounter buffer_{};
  int used_ = 4;
  bool has_spare_ = false;
  float spare_ = 0;
};

// A permutation of 0…n-1 that depends on (seed, stream) alone (Fisher-Yates).
std::vector<std::uint64_t> permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t stream);

}  // namespace convoy
