// Copies from any host memory to the device through a page-locked ring: the caller may change its bytes at once, and
// the host does not wait for the work that the device has still to do (a plain copy from pageable memory would).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

namespace convoy::cuda {

class Staging {
 public:
  explicit Staging(cudaStream_t stream) : stream_(stream) {}
  // Waits for the copies under way.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  void copy_in(std::byte* to, std::span<const std::byte> from);

 private:
  struct Piece {
    std::size_t begin, end;
    cudaEvent_t done;
  };
  std::byte* reserve(std::size_t bytes);
  void pop_front();

  cudaStream_t stream_;
  std::byte* ring_ = nullptr;  // taken with the first copy
  std::size_t head_ = 0;
  std::deque<Piece> under_way_;  // oldest first
  std::vector<cudaEvent_t> idle_;
};

}  // namespace convoy::cuda
