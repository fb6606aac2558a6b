// A GpuLane whose "GPU" is host memory, for tests without a GPU.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/tree_sum.h"
#include "cuda/fake_stream.h"
#include "cuda/gpu_lane.h"

namespace convoy::testing {

class QueueStream final : public FakeStream {
 public:
  QueueStream() : thread_([this] { run(); }) {}
  ~QueueStream() override {
    {
      const std::lock_guard guard(lock_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void put(std::function<void()> task) override {
    {
      const std::lock_guard guard(lock_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock guard(lock_);
    while (true) {
      changed_.wait(guard, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      guard.unlock();
      task();
      guard.lock();
    }
  }
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

class HostLane final : public GpuLane {
 public:
  explicit HostLane(std::string gpu) : gpu_(std::move(gpu)) {}
  // The memory that counts as the GPU's.
  void own(std::span<std::byte> memory) { (*owned_)[memory.data()] = memory.size(); }
  void forget_memory() { owned_->clear(); }

  std::unique_ptr<GpuLane> another() const override {
    auto lane = std::make_unique<HostLane>(gpu_);
    lane->owned_ = owned_;
    return lane;
  }
  std::string gpu() const override { return gpu_; }
  std::size_t free_memory() const override { return std::size_t{1} << 30; }
  bool holds(const std::byte* at) const override {
    auto next = owned_->upper_bound(at);
    if (next == owned_->begin()) return false;
    --next;
    return at < next->first + next->second;
  }
  std::byte* take_scratch(std::size_t bytes) override {
    scratch_.reset(new std::byte[bytes]);
    return scratch_.get();
  }
  std::uint64_t mark() override { return ++marks_; }
  bool reached(std::uint64_t) override { return ++looks_ % 3 == 0; }
  void enter() override {}
  cudaStream_t stream() const override {
    return reinterpret_cast<cudaStream_t>(static_cast<FakeStream*>(stream_.get()));
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    stream_->put([=] { std::memcpy(to, from, bytes); });
  }
  void sum(DType dtype, std::span<const std::byte* const> operands, std::byte* out, std::int64_t count) override {
    stream_->put([=, all = std::vector<const std::byte*>(operands.begin(), operands.end())] {
      tree_sum(dtype, all, out, count);
    });
  }
  void record() override {
    ++recorded_;
    stream_->put([this] { ++done_; });
  }
  bool done() override { return done_ == recorded_; }

 private:
  const std::string gpu_;
  std::shared_ptr<std::map<const std::byte*, std::size_t>> owned_ =
      std::make_shared<std::map<const std::byte*, std::size_t>>();
  std::atomic<std::uint64_t> marks_ = 0, looks_ = 0, done_ = 0;
  std::uint64_t recorded_ = 0;
  std::unique_ptr<std::byte[]> scratch_;
  std::unique_ptr<QueueStream> stream_ = std::make_unique<QueueStream>();
};

}  // namespace convoy::testing
