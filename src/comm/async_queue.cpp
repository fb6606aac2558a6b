#include "comm/async_queue.h"

#include <chrono>

namespace convoy {

AsyncQueue::~AsyncQueue() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::uint64_t AsyncQueue::start(std::function<void()> operation) {
  std::unique_lock guard(lock_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  waiting_.push_back(std::move(operation));
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
    changed_.wait(guard, [&] { return stopping_ || (!waiting_.empty() && !failure_); });
    if (stopping_) return;
    const std::function<void()> operation = std::move(waiting_.front());
    waiting_.pop_front();
    guard.unlock();
    std::exception_ptr failure;
    try {
      operation();
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
