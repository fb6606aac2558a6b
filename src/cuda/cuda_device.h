// The CUDA device: cuBLASLt for matrix products, cuDNN or Convoy's own kernels for attention, fused kernels for the
// rest. Computes in f32, bf16 and f16. Needs compute capability 8.0 or newer.
#pragma once

#include <array>
#include <map>

#include "cuda/context.h"
#include "cuda/staging.h"
#include "runtime/device.h"

namespace convoy {

class KernelRegistry;

class CudaDevice final : public Device {
 public:
  using Options = cuda::Options;
  // Throws a usage error where there is no such device, or it is too old.
  explicit CudaDevice(const Options& options = {});
  ~CudaDevice() override;
  std::string name() const override;
  std::string card() const override { return context_.properties.name; }
  std::string bus_id() const override;
  std::unique_ptr<DeviceMemory> allocate(std::size_t bytes) override;
  MemoryUse memory() const override { return memory_; }
  std::unique_ptr<DeviceMemory> allocate_host(std::size_t bytes) override;
  std::optional<std::size_t> own_memory() const override;
  std::unique_ptr<Kernel> prepare(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) override;
  std::size_t workspace(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) const override;
  void copy_in(std::byte* to, std::span<const std::byte> from) override;
  void copy_out(std::span<std::byte> to, const std::byte* from) override;
  void start_copy_in(std::byte* to, std::span<const std::byte> from, Lane lane) override;
  void start_copy_out(std::span<std::byte> to, const std::byte* from, Lane lane) override;
  std::unique_ptr<Mark> make_mark() override;
  void set_mark(Mark& mark, Lane lane) override;
  void await_mark(Mark& mark, Lane lane) override;
  void start_copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  bool start_peer_copy(std::byte* to, const Device& owner, const std::byte* from, std::size_t bytes) override;
  bool host_memory() const override { return false; }
  void synchronize() override;
  void set_whole_rows(bool whole) override;
  std::unique_ptr<Recording> record(const std::function<void()>& run) override;
  int recording_variant() const override;

  cuda::Context& context() { return context_; }
  // The address and size of what allocate gave out around `at`; nothing for other addresses.
  std::optional<std::pair<const std::byte*, std::size_t>> allocation_of(const std::byte* at) const;

 private:
  cudaStream_t stream(Lane lane);

  cuda::Context context_;
  std::unique_ptr<KernelRegistry> registry_;
  bool on_host(const std::byte* at) const;

  MemoryUse memory_, host_memory_;
  // What allocate and allocate_host gave out: bytes by address.
  std::map<const std::byte*, std::size_t> allocated_, pinned_;
  cuda::Staging staging_;
  std::array<cudaStream_t, 2> copy_streams_{};  // of the copy lanes, made when they are first used
};

// How many CUDA devices this process sees; 0 without a driver.
int cuda_device_count();

}  // namespace convoy
