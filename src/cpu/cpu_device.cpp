#include "cpu/cpu_device.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/parallel.h"
#include "cpu/isa.h"
#include "cpu/registry.h"

namespace convoy {
namespace {

// Anonymous pages: zeroed, page-aligned, given back whole.
class HostMemory final : public CountedMemory {
 public:
  HostMemory(std::size_t bytes, MemoryUse& use) : CountedMemory(take(bytes), bytes, use) {}
  ~HostMemory() override { ::munmap(data(), std::max<std::size_t>(bytes(), 1)); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

 private:
  static std::byte* take(std::size_t bytes) {
    void* mapped =
        ::mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw Error(Status::kDoesNotFit,
                  fmt::format("cannot take {} of memory: {}", human_bytes(bytes), std::strerror(errno)))
          .mend("see what takes less with: convoy plan");
    }
    ::madvise(mapped, bytes, MADV_HUGEPAGE);  // advice: where it is not taken, pages are small
    return static_cast<std::byte*>(mapped);
  }
};

}  // namespace

CpuDevice::CpuDevice() : registry_(std::make_unique<KernelRegistry>("CPU")) {
  cpu::register_elementwise(*registry_);
  cpu::register_norms(*registry_);
  cpu::register_embedding(*registry_);
  cpu::register_linear(*registry_);
  cpu::register_attention(*registry_);
  cpu::register_cross_attention(*registry_);
  cpu::register_frames(*registry_);
  cpu::register_cached_attention(*registry_);
  cpu::register_head(*registry_);
  cpu::register_classes(*registry_);
  cpu::register_update(*registry_);
  cpu::register_compress(*registry_);
  cpu::register_columns(*registry_);
  cpu::register_fp8(*registry_);
}

CpuDevice::~CpuDevice() = default;

std::string CpuDevice::name() const {
  return fmt::format("cpu ({}, {} threads)", cpu::name_of(cpu::active_isa()), threads());
}

// The processor's name and the threads that compute: both are what its speed depends on.
std::string CpuDevice::card() const {
  std::ifstream processors("/proc/cpuinfo");
  std::string line, model = "processor";
  while (std::getline(processors, line)) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos || !line.starts_with("model name")) continue;
    model = line.substr(colon + 2);
    break;
  }
  return fmt::format("{}, {}, {} thread{}", model, cpu::name_of(cpu::active_isa()), threads(),
                     threads() == 1 ? "" : "s");
}

std::unique_ptr<DeviceMemory> CpuDevice::allocate(std::size_t bytes) {
  return std::make_unique<HostMemory>(bytes, memory_);
}

std::unique_ptr<Kernel> CpuDevice::prepare(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) {
  return registry_->make(op, {inputs, outputs});
}

std::size_t CpuDevice::workspace(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) const {
  return registry_->workspace(op, {inputs, outputs});
}

void CpuDevice::copy_in(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());  // an empty span's pointer may be null
}
void CpuDevice::copy_out(std::span<std::byte> to, const std::byte* from) {
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
}

std::unique_ptr<DeviceMemory> CpuDevice::allocate_host(std::size_t bytes) {
  return std::make_unique<HostMemory>(bytes, host_memory_);
}

// In pieces that all threads share.
void CpuDevice::start_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  parallel_for(static_cast<std::int64_t>((bytes + kPiece - 1) / kPiece), [&](std::int64_t i) {
    const std::size_t begin = static_cast<std::size_t>(i) * kPiece;
    std::memcpy(to + begin, from + begin, std::min(kPiece, bytes - begin));
  });
}

}  // namespace convoy
