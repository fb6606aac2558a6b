#include "cuda/cuda_lane.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "cuda/cuda_check.h"
#include "cuda/cuda_device.h"
#include "cuda/rank_sum.h"

namespace convoy {

cudaStream_t cuda::make_urgent_stream() {
  int lowest = 0;
  int highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "the priorities of streams");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "a CUDA stream");
  return stream;
}

namespace {

using cuda::check_cuda;

class CudaLane final : public GpuLane {
 public:
  explicit CudaLane(CudaDevice& device) : device_(device) {
    enter();
    stream_ = cuda::make_urgent_stream();
    for (cudaEvent_t& event : ready_)
      check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a CUDA event");
    check_cuda(cudaEventCreateWithFlags(&end_, cudaEventDisableTiming), "a CUDA event");
  }
  // Whoever gives a lane up has ended what runs in it. Where that failed, waiting would be for ever, and freeing memory
  // waits too: then what the lane has stays until the process ends.
  ~CudaLane() override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    cudaSetDevice(device_.context().options.ordinal);
    while (cudaStreamQuery(stream_) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > deadline) {
        log_warning("an operation between GPUs does not end; its stream and memory are left to the driver");
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    cudaFree(scratch_);
    for (cudaEvent_t event : ready_) cudaEventDestroy(event);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  CudaLane(const CudaLane&) = delete;
  CudaLane& operator=(const CudaLane&) = delete;

  std::unique_ptr<GpuLane> another() const override { return std::make_unique<CudaLane>(device_); }
  std::string gpu() const override {
    std::string text = "GPU-";
    for (const char byte : device_.context().properties.uuid.bytes)
      text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text;
  }
  std::size_t free_memory() const override {
    std::size_t free = 0;
    std::size_t all = 0;
    check_cuda(cudaMemGetInfo(&free, &all), "the GPU's free memory");
    return free;
  }
  bool holds(const std::byte* at) const override { return device_.allocation_of(at).has_value(); }
  std::byte* take_scratch(std::size_t bytes) override {
    check(scratch_ == nullptr, "a lane's scratch is taken once");
    enter();
    check_cuda(cudaMalloc(&scratch_, bytes), "the GPU memory for communication");
    return static_cast<std::byte*>(scratch_);
  }

  std::uint64_t mark() override {
    const std::uint64_t number = marks_++;
    check_cuda(cudaEventRecord(ready_[number % ready_.size()], device_.context().stream), "a CUDA event");
    return number;
  }
  // An event that was recorded again since then stands for later work: no harm.
  bool reached(std::uint64_t mark) override { return is_over(ready_[mark % ready_.size()]); }
  void enter() override { check_cuda(cudaSetDevice(device_.context().options.ordinal), "choosing the CUDA device"); }

  cudaStream_t stream() const override { return stream_; }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "a copy within the GPU");
  }
  void sum(DType dtype, std::span<const std::byte* const> operands, std::byte* out, std::int64_t count) override {
    cuda::launch_rank_sum(dtype, operands, out, count, stream_);
  }
  void record() override { check_cuda(cudaEventRecord(end_, stream_), "a CUDA event"); }
  bool done() override { return is_over(end_); }

 private:
  static bool is_over(cudaEvent_t event) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) return false;
    check_cuda(status, "the GPU's work");
    return true;
  }

  CudaDevice& device_;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, 64> ready_{};
  cudaEvent_t end_ = nullptr;
  std::uint64_t marks_ = 0;
  void* scratch_ = nullptr;
};

}  // namespace

std::unique_ptr<GpuLane> make_cuda_lane(CudaDevice& device) {
  return std::make_unique<CudaLane>(device);
}

}  // namespace convoy
