// A management library for the tests: it exports NVML's functions, and this handle to say what they answer.
#pragma once

#include <array>
#include <atomic>

namespace convoy {

enum class FakeField : int {
  kInit,
  kHandle,
  kName,
  kUtilization,
  kMemory,
  kPower,
  kPowerLimit,
  kSmClock,
  kMemoryClock,
  kTemperature,
  kThrottle,
  kFields
};

// Atomic, since the sampling thread asks while the test sets.
struct FakeNvml {
  std::array<std::atomic<int>, static_cast<std::size_t>(FakeField::kFields)> codes;  // 0 = success
  std::array<std::atomic<unsigned>, static_cast<std::size_t>(FakeField::kFields)> values;
  std::atomic<int> inits, shutdowns, questions;

  std::atomic<int>& code(FakeField field) { return codes[static_cast<std::size_t>(field)]; }
  std::atomic<unsigned>& value(FakeField field) { return values[static_cast<std::size_t>(field)]; }
};

inline constexpr const char* kFakeBusId = "0000:1b:00.0";
inline constexpr unsigned long long kFakeMemoryUnit = 1ULL << 20;  // the memory's value counts these

}  // namespace convoy
