// The device that tests of programs run on: the CPU, or what CONVOY_TEST_DEVICE names.
#pragma once

#include <cstdlib>

#include "devices/make_device.h"

namespace convoy::testing {

inline std::unique_ptr<Device> test_device() {
  const char* name = std::getenv("CONVOY_TEST_DEVICE");
  return make_device(name == nullptr ? "cpu" : name);
}

}  // namespace convoy::testing
