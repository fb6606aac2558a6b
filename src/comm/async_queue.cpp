#include "comm/async_queue.h"

#include <chrono>

namespace convoy {

void AsyncQueue::stop() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::uint64_t AsyncQueue::push(const Task& task) {
  std::unique_lock guard(lock_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  if (started_ - taken_ == ring_.size()) {
    std::vector<Task> larger(ring_.size() * 2);
    for (std::uint64_t n = taken_; n < started_; ++n) larger[n % larger.size()] = ring_[n % ring_.size()];
    ring_.swap(larger);
  }
  ring_[started_ % ring_.size()] = task;
  const std::uint64_t number = ++started_;
  guard.unlock();
  changed_.notify_all();
  return number;
}

double AsyncQueue::wait(std::uint64_t number) {
  std::unique_lock guard(lock_);
  if (done_ >= number && !failure_) return 0;
  const auto begin = std::chrono::steady_clock::now();
  changed_.wait(guard, [&] { return done_ >= number || failure_; });
  if (failure_) std::rethrow_exception(failure_);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double AsyncQueue::wait_all() {
  std::uint64_t last = 0;
  {
    const std::lock_guard guard(lock_);
    last = started_;
  }
  return wait(last);
}

void AsyncQueue::run() {
  std::unique_lock guard(lock_);
  while (true) {
    changed_.wait(guard, [&] { return stopping_ || (taken_ < started_ && !failure_); });
    if (stopping_) return;
    Task task = ring_[taken_++ % ring_.size()];
    guard.unlock();
    std::exception_ptr failure;
    try {
      task.run(task.closure);
    } catch (...) {
      failure = std::current_exception();
    }
    guard.lock();
    if (failure) failure_ = failure;
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace convoy
