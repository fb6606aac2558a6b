// Signs of progress while a rank does long work that the others must wait for: tokenising, reading a model.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/communicator.h"

namespace convoy {

class KeepAlive {
 public:
  explicit KeepAlive(Communicator& communicator)
      : thread_([this, &communicator] {
          std::unique_lock guard(lock_);
          while (!ended_) {
            communicator.progress();
            changed_.wait_for(guard, std::chrono::milliseconds(200), [this] { return ended_; });
          }
        }) {}
  ~KeepAlive() {
    {
      const std::lock_guard guard(lock_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  KeepAlive(const KeepAlive&) = delete;
  KeepAlive& operator=(const KeepAlive&) = delete;

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace convoy
