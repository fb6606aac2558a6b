// Runs operations one after another in a thread of its own, in the order in which they were started.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace convoy {

class AsyncQueue {
 public:
  AsyncQueue() = default;
  ~AsyncQueue();
  AsyncQueue(const AsyncQueue&) = delete;
  AsyncQueue& operator=(const AsyncQueue&) = delete;

  // Returns the operation's number, from 1. After a failure nothing runs any more.
  std::uint64_t start(std::function<void()> operation);
  // Returns when it and all before it are done; returns the seconds that this took. Rethrows the first failure.
  double wait(std::uint64_t number);
  // For all that was started.
  double wait_all();

 private:
  void run();
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::uint64_t started_ = 0, done_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace convoy
