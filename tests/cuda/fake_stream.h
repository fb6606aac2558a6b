// What stands for a CUDA stream where there is no GPU: a queue of tasks with a thread of its own.
#pragma once

#include <functional>

namespace convoy::testing {

class FakeStream {
 public:
  virtual ~FakeStream() = default;
  virtual void put(std::function<void()> task) = 0;
};

}  // namespace convoy::testing
