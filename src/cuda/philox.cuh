// Philox4x32-10, as base/random.h.
#pragma once

#include <cstdint>

namespace convoy::cuda {

__device__ inline uint4 philox(uint4 c, std::uint32_t k0, std::uint32_t k1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t h0 = __umulhi(0xD2511F53u, c.x), l0 = 0xD2511F53u * c.x;
    const std::uint32_t h1 = __umulhi(0xCD9E8D57u, c.z), l1 = 0xCD9E8D57u * c.z;
    c = make_uint4(h1 ^ c.y ^ k0, l1, h0 ^ c.w ^ k1, l0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Word i of a block, which stays in registers where i is known.
__device__ inline std::uint32_t philox_word(const uint4& block, int i) {
  return i == 0 ? block.x : (i == 1 ? block.y : (i == 2 ? block.z : block.w));
}

__device__ inline float to_unit(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

}  // namespace convoy::cuda
