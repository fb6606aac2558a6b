// What a communicator does on a GPU beside its library's own operations: a stream for communication, what the device
// was told before, sums and copies. An interface, so that the communicator's logic also runs where there is no GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"

namespace convoy {

class GpuLane {
 public:
  virtual ~GpuLane() = default;
  // Another one on the same GPU, with a stream and scratch of its own.
  virtual std::unique_ptr<GpuLane> another() const = 0;
  // The same text for two processes on one GPU (or one MIG slice), and only then, over all hosts.
  virtual std::string gpu() const = 0;
  // Bytes of the GPU's memory that nobody has taken.
  virtual std::size_t free_memory() const = 0;
  // Whether `at` is memory of this GPU that the device gave out.
  virtual bool holds(const std::byte* at) const = 0;
  // Memory of the GPU that stays until the lane goes. To be called once.
  virtual std::byte* take_scratch(std::size_t bytes) = 0;

  // A mark after all that the device was told so far; whether it has got there. The mark's own thread may go on.
  virtual std::uint64_t mark() = 0;
  virtual bool reached(std::uint64_t mark) = 0;
  // To be called first in the thread that uses what follows.
  virtual void enter() = 0;

  // The stream, in whose order the following run; done(): all that was put into it before record().
  virtual cudaStream_t stream() const = 0;
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // As comm/tree_sum.h; `out` may be one of the operands.
  virtual void sum(DType dtype, std::span<const std::byte* const> operands, std::byte* out, std::int64_t count) = 0;
  virtual void record() = 0;
  virtual bool done() = 0;
};

}  // namespace convoy
