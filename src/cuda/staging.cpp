#include "cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "cuda/cuda_check.h"

namespace convoy::cuda {
namespace {

constexpr std::size_t kRing = std::size_t{16} << 20;  // some twenty micro-batches of a 0.5B model
constexpr std::size_t kPiece = std::size_t{2} << 20;  // of a large copy: filled while those before are under way
constexpr std::size_t kStrip = std::size_t{1} << 18;  // of a piece, for one of the host's threads
constexpr std::size_t kLine = 256;
constexpr std::size_t kMostUnderWay = 1024;

// One thread copies slower than the link to the GPU.
void copy_on_host(std::byte* to, std::span<const std::byte> from) {
  if (from.size() <= kStrip) {
    std::memcpy(to, from.data(), from.size());
    return;
  }
  parallel_for(static_cast<std::int64_t>((from.size() + kStrip - 1) / kStrip), [&](std::int64_t strip) {
    const std::size_t at = static_cast<std::size_t>(strip) * kStrip;
    std::memcpy(to + at, from.data() + at, std::min(kStrip, from.size() - at));
  });
}

}  // namespace

Staging::~Staging() {
  cudaStreamSynchronize(stream_);
  for (const Piece& piece : under_way_) cudaEventDestroy(piece.done);
  for (cudaEvent_t event : idle_) cudaEventDestroy(event);
  cudaFreeHost(ring_);
}

void Staging::copy_in(std::byte* to, std::span<const std::byte> from) {
  while (!from.empty()) {
    const std::size_t bytes = std::min(from.size(), kPiece);
    std::byte* at = reserve(bytes);
    copy_on_host(at, from.first(bytes));
    check_cuda(cudaMemcpyAsync(to, at, bytes, cudaMemcpyHostToDevice, stream_), "a copy to the GPU");
    check_cuda(cudaEventRecord(under_way_.back().done, stream_), "an event");
    to += bytes;
    from = from.subspan(bytes);
  }
}

// Room of the ring that no copy reads any more, as the newest piece under way.
std::byte* Staging::reserve(std::size_t bytes) {
  if (ring_ == nullptr) {
    void* taken = nullptr;
    check_cuda(cudaHostAlloc(&taken, kRing, cudaHostAllocDefault), "page-locked memory for copies to the GPU");
    ring_ = static_cast<std::byte*>(taken);
  }
  const std::size_t rounded = (bytes + kLine - 1) / kLine * kLine;
  if (head_ + rounded > kRing) head_ = 0;
  const std::size_t begin = head_, end = head_ + rounded;
  while (!under_way_.empty()) {
    const bool in_the_way = under_way_.size() >= kMostUnderWay ||
                            std::any_of(under_way_.begin(), under_way_.end(),
                                        [&](const Piece& piece) { return piece.begin < end && begin < piece.end; });
    if (!in_the_way && cudaEventQuery(under_way_.front().done) == cudaErrorNotReady) {
      cudaGetLastError();  // "not ready" is no error
      break;
    }
    pop_front();
  }
  cudaEvent_t done = nullptr;
  if (idle_.empty()) {
    check_cuda(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "an event");
  } else {
    done = idle_.back();
    idle_.pop_back();
  }
  under_way_.push_back({begin, end, done});
  head_ = end;
  return ring_ + begin;
}

void Staging::pop_front() {
  check_cuda(cudaEventSynchronize(under_way_.front().done), "a copy to the GPU");
  idle_.push_back(under_way_.front().done);
  under_way_.pop_front();
}

}  // namespace convoy::cuda
