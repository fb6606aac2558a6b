#include "cuda/cuda_device.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "cuda/cuda_check.h"
#include "cuda/matmul.h"
#include "cuda/registry.h"

namespace convoy {
namespace cuda {
namespace {

constexpr int kLeastMajor = 8;

class CudaMemory final : public CountedMemory {
 public:
  CudaMemory(std::size_t bytes, cudaStream_t stream, MemoryUse& use, std::map<const std::byte*, std::size_t>& known)
      : CountedMemory(take(bytes), bytes, use), known_(known) {
    known_[data()] = bytes;
    check_cuda(cudaMemsetAsync(data(), 0, bytes, stream), "zeroing memory");
  }
  ~CudaMemory() override {
    known_.erase(data());
    cudaFree(data());
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

 private:
  static std::byte* take(std::size_t bytes) {
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)),
               fmt::format("cannot take {} of the GPU's memory", human_bytes(bytes)).c_str());
    return static_cast<std::byte*>(data);
  }
  std::map<const std::byte*, std::size_t>& known_;
};

// Pinned memory of the host. Mapped and registered rather than taken from cudaHostAlloc: huge pages that all threads
// touch at once are there in a tenth of the time.
class PinnedMemory final : public CountedMemory {
 public:
  PinnedMemory(std::size_t bytes, MemoryUse& use, std::map<const std::byte*, std::size_t>& known)
      : CountedMemory(take(std::max<std::size_t>(bytes, 1)), bytes, use), known_(known) {
    known_[data()] = bytes;
  }
  ~PinnedMemory() override {
    known_.erase(data());
    cudaHostUnregister(data());
    ::munmap(data(), std::max<std::size_t>(bytes(), 1));
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

 private:
  static std::byte* take(std::size_t bytes) {
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) throw does_not_fit(bytes, std::strerror(errno));
    ::madvise(data, bytes, MADV_HUGEPAGE);
    constexpr std::size_t kPage = std::size_t{2} << 20;
    parallel_for(static_cast<std::int64_t>((bytes + kPage - 1) / kPage), [&](std::int64_t page) {
      volatile std::byte* first = static_cast<std::byte*>(data) + static_cast<std::size_t>(page) * kPage;
      *first = std::byte{0};
    });
    if (const cudaError_t status = cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
        status != cudaSuccess) {
      ::munmap(data, bytes);
      throw does_not_fit(bytes, cudaGetErrorString(status));
    }
    void* seen = nullptr;
    check_cuda(cudaHostGetDevicePointer(&seen, data, 0), "pinned memory");
    check(seen == data, "a GPU that sees the host's memory at other addresses");
    return static_cast<std::byte*>(data);
  }
  static Error does_not_fit(std::size_t bytes, const char* why) {
    return Error(Status::kDoesNotFit, fmt::format("cannot take {} of pinned host memory: {}", human_bytes(bytes), why))
        .mend(
            "see `ulimit -l` and the container's memory limit; more ranks with --zero_stage 1 and above share the "
            "optimizer's state; --offload_activations none, --offload_optimizer none and --offload_param none need "
            "less");
  }
  std::map<const std::byte*, std::size_t>& known_;
};

std::optional<std::pair<const std::byte*, std::size_t>> around(const std::map<const std::byte*, std::size_t>& known,
                                                               const std::byte* at) {
  auto next = known.upper_bound(at);
  if (next == known.begin()) return std::nullopt;
  --next;
  if (at >= next->first + next->second) return std::nullopt;
  return *next;
}

class CudaMark final : public Device::Mark {
 public:
  CudaMark() { check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a CUDA event"); }
  ~CudaMark() override { cudaEventDestroy(event); }
  CudaMark(const CudaMark&) = delete;
  CudaMark& operator=(const CudaMark&) = delete;
  cudaEvent_t event = nullptr;
};

class GraphRecording final : public Recording {
 public:
  GraphRecording(cudaStream_t stream, cudaGraph_t graph) : stream_(stream) {
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(status, "a CUDA graph");
  }
  ~GraphRecording() override { cudaGraphExecDestroy(executable_); }
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;
  void replay() override { check_cuda(cudaGraphLaunch(executable_, stream_), "a CUDA graph"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

Context::Context(const Options& given) : options(given) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    throw usage_error(fmt::format("there is no CUDA device ({})", cudaGetErrorString(status)))
        .mend("use --device cpu, or look at nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  if (given.ordinal < 0 || given.ordinal >= count) {
    throw usage_error(fmt::format("there is no CUDA device {}: this process sees {}", given.ordinal, count))
        .mend("start no more processes on this host than it has GPUs, or look at CUDA_VISIBLE_DEVICES");
  }
  check_cuda(cudaSetDevice(given.ordinal), "choosing the CUDA device");
  check_cuda(cudaGetDeviceProperties(&properties, given.ordinal), "the CUDA device's properties");
  if (properties.major < kLeastMajor) {
    throw usage_error(fmt::format("{} has compute capability {}.{}; 8.0 is needed", properties.name, properties.major,
                                  properties.minor))
        .mend("use --device cpu, or a GPU of 2020 or later");
  }
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a CUDA stream");
  check_cublas(cublasLtCreate(&blas), "cuBLASLt");
  matmul_choices =
      std::make_unique<MatmulChoices>(options.search ? matmul_choices_file(properties) : std::filesystem::path());
}

Context::~Context() {
  cublasLtDestroy(blas);
  cudaStreamDestroy(stream);
}

}  // namespace cuda

CudaDevice::CudaDevice(const Options& options)
    : context_(options), registry_(std::make_unique<KernelRegistry>("CUDA")), staging_(context_.stream) {
  cuda::register_elementwise(*registry_, context_);
  cuda::register_rotary(*registry_, context_);
  cuda::register_norms(*registry_, context_);
  cuda::register_embedding(*registry_, context_);
  cuda::register_linear(*registry_, context_);
  cuda::register_attention(*registry_, context_);
  cuda::register_cross_attention(*registry_, context_);
  cuda::register_cached_attention(*registry_, context_);
  cuda::register_frames(*registry_, context_);
  cuda::register_classes(*registry_, context_);
  cuda::register_head(*registry_, context_);
  cuda::register_gradient_sums(*registry_, context_);
  cuda::register_update(*registry_, context_);
  cuda::register_compress(*registry_, context_);
  cuda::register_columns(*registry_, context_);
  cuda::register_fp8_codes(*registry_, context_);
  cuda::register_fp8_products(*registry_, context_);
}

CudaDevice::~CudaDevice() {
  cudaStreamSynchronize(context_.stream);
  for (cudaStream_t stream : copy_streams_) {
    if (stream == nullptr) continue;
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
}

std::string CudaDevice::name() const {
  return fmt::format("cuda:{} ({})", context_.options.ordinal, context_.properties.name);
}

std::string CudaDevice::bus_id() const {
  char id[32] = {};
  cuda::check_cuda(cudaDeviceGetPCIBusId(id, sizeof(id), context_.options.ordinal), "the GPU's bus id");
  return id;
}

std::unique_ptr<DeviceMemory> CudaDevice::allocate(std::size_t bytes) {
  // Another device's object may have been made since.
  cuda::check_cuda(cudaSetDevice(context_.options.ordinal), "choosing the CUDA device");
  return std::make_unique<cuda::CudaMemory>(bytes, context_.stream, memory_, allocated_);
}

cudaStream_t CudaDevice::stream(Lane lane) {
  if (lane == Lane::kWork) return context_.stream;
  cudaStream_t& stream = copy_streams_[lane == Lane::kToDevice ? 0 : 1];
  if (stream == nullptr) {
    cuda::check_cuda(cudaSetDevice(context_.options.ordinal), "choosing the CUDA device");
    cuda::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a CUDA stream");
  }
  return stream;
}

void CudaDevice::start_copy_in(std::byte* to, std::span<const std::byte> from, Lane lane) {
  cuda::check_cuda(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream(lane)),
                   "a copy to the GPU");
}

void CudaDevice::start_copy_out(std::span<std::byte> to, const std::byte* from, Lane lane) {
  cuda::check_cuda(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream(lane)),
                   "a copy from the GPU");
}

std::unique_ptr<Device::Mark> CudaDevice::make_mark() {
  cuda::check_cuda(cudaSetDevice(context_.options.ordinal), "choosing the CUDA device");
  return std::make_unique<cuda::CudaMark>();
}

// In a recording, events are the edges of its graph: a copy lane joins it by awaiting a mark of the kernels' lane.
void CudaDevice::set_mark(Mark& mark, Lane lane) {
  cuda::check_cuda(cudaEventRecord(static_cast<cuda::CudaMark&>(mark).event, stream(lane)), "a CUDA event");
}

void CudaDevice::await_mark(Mark& mark, Lane lane) {
  cuda::check_cuda(cudaStreamWaitEvent(stream(lane), static_cast<cuda::CudaMark&>(mark).event), "a CUDA event");
}

void CudaDevice::start_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  cuda::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, context_.stream),
                   "a copy within the GPU");
}

bool CudaDevice::start_peer_copy(std::byte* to, const Device& owner, const std::byte* from, std::size_t bytes) {
  const auto* other = dynamic_cast<const CudaDevice*>(&owner);
  if (other == nullptr) return false;
  const int here = context_.options.ordinal, there = other->context_.options.ordinal;
  if (here == there) return false;
  int direct = 0;
  cuda::check_cuda(cudaDeviceCanAccessPeer(&direct, here, there), "the link between two GPUs");
  if (direct != 0) {  // otherwise the driver stages the copy in host memory
    cuda::check_cuda(cudaSetDevice(here), "choosing the CUDA device");
    const cudaError_t status = cudaDeviceEnablePeerAccess(there, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
    } else {
      cuda::check_cuda(status, "the link between two GPUs");
    }
  }
  cuda::check_cuda(cudaMemcpyPeerAsync(to, here, from, there, bytes, stream(Lane::kToDevice)), "a copy between GPUs");
  return true;
}

std::unique_ptr<Kernel> CudaDevice::prepare(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) {
  return registry_->make(op, {inputs, outputs});
}

std::size_t CudaDevice::workspace(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) const {
  return registry_->workspace(op, {inputs, outputs});
}

std::unique_ptr<DeviceMemory> CudaDevice::allocate_host(std::size_t bytes) {
  return std::make_unique<cuda::PinnedMemory>(bytes, host_memory_, pinned_);
}

std::optional<std::size_t> CudaDevice::own_memory() const {
  // Loaded kernels, libraries' own buffers and CUDA graphs come on top of the plan.
  constexpr std::size_t kReserve = std::size_t{768} << 20;
  std::size_t free = 0;
  std::size_t all = 0;
  cuda::check_cuda(cudaMemGetInfo(&free, &all), "the GPU's free memory");
  return (free > kReserve ? free - kReserve : 0) / static_cast<std::size_t>(context_.options.sharers);
}

std::optional<std::pair<const std::byte*, std::size_t>> CudaDevice::allocation_of(const std::byte* at) const {
  return cuda::around(allocated_, at);
}

bool CudaDevice::on_host(const std::byte* at) const {
  return cuda::around(pinned_, at).has_value();
}

void CudaDevice::copy_in(std::byte* to, std::span<const std::byte> from) {
  if (on_host(to)) {  // what the GPU is doing may read or write it
    synchronize();
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
    return;
  }
  staging_.copy_in(to, from);
}

void CudaDevice::copy_out(std::span<std::byte> to, const std::byte* from) {
  if (on_host(from)) {
    synchronize();
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
    return;
  }
  cuda::check_cuda(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, context_.stream),
                   "a copy from the GPU");
  synchronize();
}

void CudaDevice::synchronize() {
  cuda::check_cuda(cudaStreamSynchronize(context_.stream), "the GPU's work");
  for (cudaStream_t stream : copy_streams_) {
    if (stream != nullptr) cuda::check_cuda(cudaStreamSynchronize(stream), "the GPU's copies");
  }
}

void CudaDevice::set_whole_rows(bool whole) {
  context_.whole_rows = whole;
}

int CudaDevice::recording_variant() const {
  return context_.whole_rows ? 1 : 0;
}

std::unique_ptr<Recording> CudaDevice::record(const std::function<void()>& run) {
  cuda::check_cuda(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal), "recording a CUDA graph");
  cudaGraph_t graph = nullptr;
  try {
    run();
  } catch (...) {
    cudaStreamEndCapture(context_.stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  cuda::check_cuda(cudaStreamEndCapture(context_.stream, &graph), "recording a CUDA graph");
  return std::make_unique<cuda::GraphRecording>(context_.stream, graph);
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

}  // namespace convoy
