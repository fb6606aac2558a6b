// Opens a fake management library and keeps it loaded, so that what the test sets outlives those who use it.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "fake_nvml.h"

namespace convoy {

class FakeLibrary {
 public:
  explicit FakeLibrary(const char* path) : path_(path), file_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (file_ == nullptr) throw std::runtime_error(dlerror());
    state_ = reinterpret_cast<FakeNvml* (*)()>(dlsym(file_, "fake_nvml"))();
    for (auto& code : state_->codes) code = 0;
    for (auto& value : state_->values) value = 0;
    state_->inits = state_->shutdowns = state_->questions = 0;
    (*this)(FakeField::kUtilization) = 93;
    (*this)(FakeField::kMemory) = 250;
    (*this)(FakeField::kPower) = 412500;
    (*this)(FakeField::kPowerLimit) = 700000;
    (*this)(FakeField::kSmClock) = 1980;
    (*this)(FakeField::kMemoryClock) = 3201;
    (*this)(FakeField::kTemperature) = 64;
    (*this)(FakeField::kThrottle) = 0x4;
  }
  ~FakeLibrary() { dlclose(file_); }
  FakeLibrary(const FakeLibrary&) = delete;
  FakeLibrary& operator=(const FakeLibrary&) = delete;

  std::atomic<unsigned>& operator()(FakeField field) { return state_->value(field); }
  FakeNvml* operator->() { return state_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* file_;
  FakeNvml* state_ = nullptr;
};

}  // namespace convoy
