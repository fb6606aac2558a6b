// Copies to and from the device: staged ones, started ones, and their order with kernels.
#include <algorithm>

#include "cuda/cuda_test.h"

namespace convoy {
namespace {

using CudaCopies = testing::CudaTest;

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 13);
  return made;
}

TEST_F(CudaCopies, TheCallersBytesMayChangeAtOnce) {
  constexpr std::size_t kBytes = 3000001;  // two pieces
  const auto memory = device_->allocate(20 * kBytes);
  std::vector<std::byte> source(kBytes);
  for (unsigned i = 0; i < 20; ++i) {  // more than the ring holds
    const std::vector<std::byte> next = pattern(kBytes, i);
    std::copy(next.begin(), next.end(), source.begin());
    device_->copy_in(memory->data() + i * kBytes, source);
    std::fill(source.begin(), source.end(), std::byte{0xee});
  }
  for (unsigned i = 0; i < 20; ++i) {
    device_->copy_out(source, memory->data() + i * kBytes);
    EXPECT_TRUE(source == pattern(kBytes, i)) << i;
  }
}

TEST_F(CudaCopies, ManySmallOnesKeepTheirOrder) {
  const auto memory = device_->allocate(8);
  std::byte last[4] = {};
  for (unsigned i = 0; i < 5000; ++i) {
    for (unsigned b = 0; b < 4; ++b) last[b] = static_cast<std::byte>(i >> (8 * b));
    device_->copy_in(memory->data() + i % 2 * 4, last);
  }
  std::byte got[8];
  device_->copy_out(got, memory->data());
  EXPECT_TRUE(std::equal(std::begin(last), std::end(last), got + 4));
}

TEST_F(CudaCopies, StartedOnesAreDoneAfterSynchronize) {
  constexpr std::size_t kBytes = 1 << 20;
  const auto host = device_->allocate_host(2 * kBytes);
  const auto memory = device_->allocate(2 * kBytes);
  const std::vector<std::byte> given = pattern(kBytes, 7);
  for (const Lane lane : {Lane::kWork, Lane::kToDevice}) {
    device_->synchronize();
    std::copy(given.begin(), given.end(), host->data());
    device_->start_copy_in(memory->data(), {host->data(), kBytes}, lane);
    device_->synchronize();
    device_->start_copy(memory->data() + kBytes, memory->data(), kBytes);
    if (lane != Lane::kWork) device_->synchronize();
    device_->start_copy_out({host->data() + kBytes, kBytes}, memory->data() + kBytes,
                            lane == Lane::kWork ? lane : Lane::kToHost);
    device_->synchronize();
    EXPECT_TRUE(std::equal(given.begin(), given.end(), host->data() + kBytes));
    std::fill(host->data(), host->data() + 2 * kBytes, std::byte{0});
  }
  EXPECT_FALSE(device_->start_peer_copy(memory->data(), *device_, memory->data() + kBytes, 16));
}

}  // namespace
}  // namespace convoy
