#include "devices/make_device.h"

#include "base/error.h"
#include "cpu/cpu_device.h"
#ifdef CONVOY_HAS_CUDA
#include "cuda/choose_communicator.h"
#include "cuda/cuda_device.h"
#endif

namespace convoy {

std::unique_ptr<Device> make_device(std::string_view name, const DeviceOptions& options) {
  if (name == "cpu") return std::make_unique<CpuDevice>();
  check(name == "cuda", "a device that does not exist");
#ifdef CONVOY_HAS_CUDA
  CudaDevice::Options cuda;
  const int count = cuda_device_count();
  cuda.ordinal = count > 0 ? options.local_rank % count : 0;
  cuda.sharers = count > 0 ? (options.local_size + count - 1) / count : 1;
  cuda.deterministic = options.deterministic;
  cuda.tf32 = options.tf32;
  return std::make_unique<CudaDevice>(cuda);
#else
  static_cast<void>(options);
  throw usage_error("this build has no CUDA device")
      .mend("use --device cpu, or build with: cmake --preset cuda && cmake --build build/cuda");
#endif
}

std::unique_ptr<Communicator> device_communicator(Device& device, std::unique_ptr<Communicator>& host,
                                                  const ExchangeOptions& options) {
#ifdef CONVOY_HAS_CUDA
  if (auto* cuda = dynamic_cast<CudaDevice*>(&device); cuda != nullptr && host->size() > 1)
    return choose_gpu_communicator(*cuda, host, options.kind, {options.timeout_seconds, options.deterministic});
#endif
  static_cast<void>(device);
  static_cast<void>(options);
  return std::move(host);
}

int device_count(std::string_view name) {
  if (name == "cpu") return 1;
#ifdef CONVOY_HAS_CUDA
  return cuda_device_count();
#else
  return 0;
#endif
}

}  // namespace convoy
