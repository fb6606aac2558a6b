// The devices of this build, by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "runtime/device.h"

namespace convoy {

struct DeviceOptions {
  int local_rank = 0;         // which of the host's GPUs; ranks beyond their number share them
  int local_size = 1;         // ranks on this host
  bool deterministic = true;  // the same bits in every run
  bool tf32 = false;          // cuda: products of f32 matrices in TF32
};

// "cpu" or "cuda". Throws a usage error where this build or this machine has no such device.
std::unique_ptr<Device> make_device(std::string_view name, const DeviceOptions& options = {});
// How many devices of the name this process sees.
int device_count(std::string_view name);

// How ranks exchange what lies in their GPUs' memory.
struct ExchangeOptions {
  std::string kind = "auto";  // the run's gpu_communicator: auto, nccl, ipc or host
  bool deterministic = true;  // sums by the fixed tree
  double timeout_seconds = 30;
};

// The communicator for tensors of `device`: `host`, or one that wraps it and reaches the device's memory. All ranks
// must call, with the same options. `host` is empty afterwards. Throws a usage error where the kind cannot be had.
std::unique_ptr<Communicator> device_communicator(Device& device, std::unique_ptr<Communicator>& host,
                                                  const ExchangeOptions& options = {});

}  // namespace convoy
