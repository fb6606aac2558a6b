// What the tests of the CUDA device share: they skip where there is no GPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/cuda_device.h"

namespace convoy::testing {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU here";
    device_ = std::make_unique<CudaDevice>();
  }
  std::unique_ptr<CudaDevice> device_;
};

// ‖a − b‖ / ‖b‖; NaN where either holds one.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

}  // namespace convoy::testing
