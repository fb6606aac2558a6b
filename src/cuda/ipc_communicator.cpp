#include "cuda/ipc_communicator.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "comm/queued_communicator.h"
#include "cuda/cuda_check.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_lane.h"
#include "cuda/rank_sum.h"

namespace convoy {
namespace {

using cuda::check_cuda;

// Where a tensor lies, for another process.
struct RemoteTensor {
  cudaIpcMemHandle_t handle{};  // of its allocation
  std::uint64_t offset = 0;
};

// The others' allocations as this process sees them.
class MappedMemory {
 public:
  MappedMemory() = default;
  ~MappedMemory() {
    for (const auto& [handle, base] : known_) cudaIpcCloseMemHandle(base);
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  const std::byte* at(const RemoteTensor& place) {
    Handle handle;
    std::memcpy(handle.data(), &place.handle, handle.size());
    const auto [known, fresh] = known_.try_emplace(handle, nullptr);
    if (fresh) {
      const cudaError_t status = cudaIpcOpenMemHandle(&known->second, place.handle, cudaIpcMemLazyEnablePeerAccess);
      if (status != cudaSuccess) known_.erase(known);
      check_cuda(status, "mapping another rank's memory");
    }
    return static_cast<const std::byte*>(known->second) + place.offset;
  }

 private:
  using Handle = std::array<char, sizeof(cudaIpcMemHandle_t)>;
  std::map<Handle, void*> known_;
};

class IpcCommunicator final : public QueuedCommunicator {
 public:
  IpcCommunicator(CudaDevice& device, std::unique_ptr<Communicator> host) : device_(device), host_(std::move(host)) {
    stream_ = cuda::make_urgent_stream();
    for (cudaEvent_t& event : ready_)
      check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a CUDA event");
  }
  ~IpcCommunicator() override {
    queue_.stop();
    cudaStreamSynchronize(stream_);
    for (cudaEvent_t event : ready_) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string name() const override { return "cuda-ipc"; }
  bool reaches_device_memory() const override { return true; }

  void broadcast(std::span<std::byte> bytes, int root) override {
    direct([&] { through(*host_, [&] { host_->broadcast(bytes, root); }); });
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override {
    direct([&] { through(*host_, [&] { host_->all_to_all(send, receive); }); });
  }
  void send(std::span<const std::byte> bytes, int to) override {
    direct([&] { through(*host_, [&] { host_->send(bytes, to); }); });
  }
  void receive(std::span<std::byte> bytes, int from) override {
    direct([&] { through(*host_, [&] { host_->receive(bytes, from); }); });
  }
  void barrier() override {
    direct([&] { through(*host_, [&] { host_->barrier(); }); });
  }
  // The groups carry host memory.
  std::unique_ptr<Communicator> split(int color) override {
    std::unique_ptr<Communicator> group;
    direct([&] { group = host_->split(color); });
    return group;
  }
  void progress() override { host_->progress(); }
  void abort(const std::string& reason) override { host_->abort(reason); }

 private:
  // What the device has been told before an operation starts comes before it.
  std::uint64_t mark() override {
    const std::uint64_t number = marks_++;
    check_cuda(cudaEventRecord(ready_[number % ready_.size()], device_.context().stream), "a CUDA event");
    return number;
  }
  void reach(std::uint64_t mark) override {
    // An event that was recorded again since then stands for later work: no harm.
    const cudaEvent_t event = ready_[mark % ready_.size()];
    check_cuda(cudaSetDevice(device_.context().options.ordinal), "choosing the CUDA device");
    for (int look = 1;; ++look) {
      const cudaError_t status = cudaEventQuery(event);
      if (status == cudaSuccess) return;
      if (status != cudaErrorNotReady) check_cuda(status, "the GPU's work");
      if (look % 1024 == 0) host_->progress();
      std::this_thread::sleep_for(std::chrono::microseconds(look < 64 ? 2 : 20));
    }
  }

  double seconds_waited() const override { return host_->traffic().seconds_waiting; }

  template <typename Piece, typename At, typename Count>
  bool on_device(std::span<const Piece> pieces, const At& at, const Count& count) const {
    for (const Piece& piece : pieces) {
      if (count(piece) > 0) return device_.allocation_of(at(piece)).has_value();
    }
    return false;
  }

  // Tells the others where this rank's tensors lie, and hears it of theirs: by rank, then by tensor. What was started
  // before is done on every rank afterwards.
  void exchange(const std::vector<const std::byte*>& mine) {
    std::vector<RemoteTensor> tensors_of_all(mine.size() * static_cast<std::size_t>(size()));
    const std::size_t first = static_cast<std::size_t>(rank()) * mine.size();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const auto allocation = device_.allocation_of(mine[i]);
      if (!allocation) continue;  // an empty shard
      check_cuda(cudaIpcGetMemHandle(&tensors_of_all[first + i].handle, const_cast<std::byte*>(allocation->first)),
                 "naming the GPU's memory");
      tensors_of_all[first + i].offset = static_cast<std::uint64_t>(mine[i] - allocation->first);
    }
    const auto bytes = static_cast<std::int64_t>(mine.size() * sizeof(RemoteTensor));
    const GatherPiece piece{reinterpret_cast<const std::byte*>(&tensors_of_all[first]),
                            reinterpret_cast<std::byte*>(tensors_of_all.data()),
                            {bytes * size(), bytes}};
    host_->all_gather(DType::kU8, std::span(&piece, 1));
    theirs_.assign(tensors_of_all.size(), nullptr);
    static const RemoteTensor kNone{};
    for (std::size_t i = 0; i < tensors_of_all.size(); ++i) {
      if (i >= first && i < first + mine.size()) {
        theirs_[i] = mine[i - first];
      } else if (std::memcmp(&tensors_of_all[i], &kNone, sizeof(RemoteTensor)) != 0) {
        theirs_[i] = mapped_.at(tensors_of_all[i]);
      }
    }
  }
  const std::byte* of(int rank, std::size_t tensor, std::size_t tensors) const {
    return theirs_[static_cast<std::size_t>(rank) * tensors + tensor];
  }
  void finish() {
    check_cuda(cudaStreamSynchronize(stream_), "a collective operation");
    host_->barrier();  // the others have read what this rank may write again
  }

  // Elements [begin, begin + count) of tensor i of all ranks.
  void sum(DType dtype, std::size_t tensor, std::size_t tensors, std::int64_t begin, std::int64_t count,
           std::byte* out) {
    cuda::RankOperands operands{};
    for (int r = 0; r < size(); ++r)
      operands[static_cast<std::size_t>(r)] = of(r, tensor, tensors) + static_cast<std::size_t>(begin) * size_of(dtype);
    cuda::launch_rank_sum(dtype, operands, size(), out, count, stream_);
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes == 0 || to == from) return;
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "a copy from another rank");
  }

  void run_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) override {
    if (!on_device(
            pieces, [](const ScatterPiece& p) { return p.full; }, [](const ScatterPiece& p) { return p.cut.numel; })) {
      return through(*host_, [&] { host_->reduce_scatter(dtype, pieces); });
    }
    std::vector<const std::byte*> mine;
    for (const ScatterPiece& piece : pieces) {
      mine.push_back(piece.full);
      traffic_.reduce_scatter +=
          static_cast<std::uint64_t>(piece.cut.numel - piece.cut.length(rank())) * size_of(dtype);
    }
    ++traffic_.operations;
    exchange(mine);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const ShardCut& cut = pieces[i].cut;
      sum(dtype, i, pieces.size(), cut.begin(rank()), cut.length(rank()), pieces[i].shard);
    }
    finish();
  }

  void run_all_gather(DType dtype, std::span<const GatherPiece> pieces) override {
    if (!on_device(
            pieces, [](const GatherPiece& p) { return p.full; }, [](const GatherPiece& p) { return p.cut.numel; })) {
      return through(*host_, [&] { host_->all_gather(dtype, pieces); });
    }
    const std::size_t element = size_of(dtype);
    std::vector<const std::byte*> mine;
    for (const GatherPiece& piece : pieces) {
      mine.push_back(piece.shard);
      traffic_.all_gather +=
          static_cast<std::uint64_t>(piece.cut.length(rank())) * element * static_cast<std::uint64_t>(size() - 1);
    }
    ++traffic_.operations;
    exchange(mine);
    for (int step = 0; step < size(); ++step) {
      const int from = (rank() + step) % size();  // not all from one rank at once
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const ShardCut& cut = pieces[i].cut;
        copy(pieces[i].full + static_cast<std::size_t>(cut.begin(from)) * element, of(from, i, pieces.size()),
             static_cast<std::size_t>(cut.length(from)) * element);
      }
    }
    finish();
  }

  // Each rank sums a part of every tensor in place, and then takes the other parts from the others.
  void run_all_reduce(DType dtype, std::span<const ReducePiece> pieces) override {
    if (!on_device(
            pieces, [](const ReducePiece& p) { return p.data; }, [](const ReducePiece& p) { return p.numel; }))
      return through(*host_, [&] { host_->all_reduce(dtype, pieces); });
    const std::size_t element = size_of(dtype);
    std::vector<const std::byte*> mine;
    std::uint64_t total = 0;
    for (const ReducePiece& piece : pieces) {
      mine.push_back(piece.data);
      total += static_cast<std::uint64_t>(piece.numel) * element;
    }
    traffic_.all_reduce += 2 * total * static_cast<std::uint64_t>(size() - 1) / static_cast<std::uint64_t>(size());
    ++traffic_.operations;
    exchange(mine);
    constexpr std::int64_t kUnit = 16;
    const auto part = [&](std::int64_t numel, int of_rank) {
      const std::int64_t each = ((numel + size() - 1) / size() + kUnit - 1) / kUnit * kUnit;
      const std::int64_t begin = std::min(numel, each * of_rank);
      return std::pair(begin, std::min(numel, begin + each) - begin);
    };
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto [begin, count] = part(pieces[i].numel, rank());
      sum(dtype, i, pieces.size(), begin, count, pieces[i].data + static_cast<std::size_t>(begin) * element);
    }
    finish();
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() + step) % size();
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const auto [begin, count] = part(pieces[i].numel, from);
        const std::size_t offset = static_cast<std::size_t>(begin) * element;
        copy(pieces[i].data + offset, of(from, i, pieces.size()) + offset, static_cast<std::size_t>(count) * element);
      }
    }
    finish();
  }

  CudaDevice& device_;
  const std::unique_ptr<Communicator> host_;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, 64> ready_{};
  std::uint64_t marks_ = 0;
  MappedMemory mapped_;
  std::vector<const std::byte*> theirs_;  // of the operation that runs
};

// Whether this rank can read a word of every other's memory.
bool can_map_all(CudaDevice& device, Communicator& host) {
  std::vector<RemoteTensor> tensors_of_all(static_cast<std::size_t>(host.size()));
  const std::unique_ptr<DeviceMemory> word = device.allocate(256);
  bool fine =
      cudaIpcGetMemHandle(&tensors_of_all[static_cast<std::size_t>(host.rank())].handle, word->data()) == cudaSuccess;
  device.synchronize();
  const auto bytes = static_cast<std::int64_t>(sizeof(RemoteTensor));
  const GatherPiece piece{reinterpret_cast<const std::byte*>(&tensors_of_all[static_cast<std::size_t>(host.rank())]),
                          reinterpret_cast<std::byte*>(tensors_of_all.data()),
                          {bytes * host.size(), bytes}};
  host.all_gather(DType::kU8, std::span(&piece, 1));
  {
    MappedMemory mapped;
    for (int r = 0; r < host.size() && fine; ++r) {
      if (r == host.rank()) continue;
      try {
        const std::byte* theirs = mapped.at(tensors_of_all[static_cast<std::size_t>(r)]);
        std::array<std::byte, 8> read{};
        device.copy_out(read, theirs);
      } catch (const Error& failure) {
        log_debug("rank {} cannot read rank {}'s GPU memory: {}", host.rank(), r, failure.what());
        cudaGetLastError();
        fine = false;
      }
    }
  }
  double failures = fine ? 0 : 1;
  const ReducePiece sum{reinterpret_cast<std::byte*>(&failures), 1};
  host.all_reduce(DType::kF64, std::span(&sum, 1));  // also: nobody frees its word before all have read it
  return failures == 0;
}

}  // namespace

std::unique_ptr<Communicator> make_ipc_communicator(CudaDevice& device, std::unique_ptr<Communicator> host) {
  if (host->size() > cuda::kMostSummedRanks || !can_map_all(device, *host)) return host;
  return std::make_unique<IpcCommunicator>(device, std::move(host));
}

}  // namespace convoy
