// Runs operations one after another in a thread of its own, in the order in which they were started.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace convoy {

class AsyncQueue {
 public:
  AsyncQueue() = default;
  ~AsyncQueue() { stop(); }
  AsyncQueue(const AsyncQueue&) = delete;
  AsyncQueue& operator=(const AsyncQueue&) = delete;

  // Returns the operation's number, from 1. After a failure nothing runs any more. The operation is kept in place:
  // starting one allocates nothing, unless more are under way than ever before.
  template <typename Operation>
  std::uint64_t start(const Operation& operation) {
    static_assert(std::is_trivially_copyable_v<Operation> && sizeof(Operation) <= sizeof(Task::closure));
    Task task;
    std::memcpy(task.closure, &operation, sizeof(operation));
    task.run = [](std::byte* closure) { (*reinterpret_cast<const Operation*>(closure))(); };
    return push(task);
  }
  // Returns when it and all before it are done; returns the seconds that this took. Rethrows the first failure.
  double wait(std::uint64_t number);
  // For all that was started.
  double wait_all();
  // Waits for the operation that runs, and forgets those that wait. The owner calls this before it takes away what
  // operations use.
  void stop();

 private:
  struct Task {
    alignas(std::max_align_t) std::byte closure[48];
    void (*run)(std::byte* closure);
  };

  std::uint64_t push(const Task& task);
  void run();
  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<Task> ring_{32};  // operation n waits at place n % size
  std::uint64_t started_ = 0, taken_ = 0, done_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace convoy
