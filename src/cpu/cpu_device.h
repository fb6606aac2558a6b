// The CPU device: oneDNN for matrix products, OpenMP kernels for the rest. Results do not depend on the number of
// threads.
#pragma once

#include "runtime/device.h"

namespace convoy {

class KernelRegistry;

class CpuDevice final : public Device {
 public:
  CpuDevice();
  ~CpuDevice() override;
  std::string name() const override;
  std::string card() const override;
  std::unique_ptr<DeviceMemory> allocate(std::size_t bytes) override;
  MemoryUse memory() const override { return memory_; }
  std::unique_ptr<Kernel> prepare(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) override;
  std::size_t workspace(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) const override;
  void copy_in(std::byte* to, std::span<const std::byte> from) override;
  void copy_out(std::span<std::byte> to, const std::byte* from) override;
  std::unique_ptr<DeviceMemory> allocate_host(std::size_t bytes) override;
  void start_copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void synchronize() override {}

 private:
  std::unique_ptr<KernelRegistry> registry_;
  MemoryUse memory_, host_memory_;
};

}  // namespace convoy
