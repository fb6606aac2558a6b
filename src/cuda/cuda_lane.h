// A GpuLane on a CUDA device.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "cuda/gpu_lane.h"

namespace convoy {

namespace cuda {
// A stream whose work goes before that of other streams: what other ranks wait for. The caller destroys it.
cudaStream_t make_urgent_stream();
}  // namespace cuda

class CudaDevice;

// `device` outlives the lane.
std::unique_ptr<GpuLane> make_cuda_lane(CudaDevice& device);

}  // namespace convoy
