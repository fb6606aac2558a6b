// A GpuLane on a CUDA device.
#pragma once

#include <memory>

#include "cuda/gpu_lane.h"

namespace convoy {

class CudaDevice;

// `device` outlives the lane.
std::unique_ptr<GpuLane> make_cuda_lane(CudaDevice& device);

}  // namespace convoy
