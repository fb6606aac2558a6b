// A device runs programs. The executor knows devices through this interface alone.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "program/program.h"

namespace convoy {

// Raw memory of a device, freed with the object.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* data() const = 0;
  virtual std::size_t bytes() const = 0;
};

// The operands of one run of a kernel; absent operands are null.
struct KernelArguments {
  std::span<std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::byte* workspace;
};

// An instruction made ready for its shapes. Running it allocates nothing.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(const KernelArguments& arguments) = 0;
};

struct MemoryUse {
  std::size_t current = 0;
  std::size_t peak = 0;
};

class Device : public WorkspaceSizes {
 public:
  virtual std::string name() const = 0;
  // Zeroed memory, 64-byte aligned. Throws an error of status does-not-fit.
  virtual std::unique_ptr<DeviceMemory> allocate(std::size_t bytes) = 0;
  // What allocate has given out.
  virtual MemoryUse memory() const = 0;
  virtual std::unique_ptr<Kernel> prepare(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) = 0;
  virtual void copy_in(std::byte* to, std::span<const std::byte> from) = 0;
  virtual void copy_out(std::span<std::byte> to, const std::byte* from) = 0;
  // Waits for everything that was started.
  virtual void synchronize() = 0;
};

}  // namespace convoy
