// FAKE_NVML_PARTIAL leaves out functions that statistics can do without, and has the throttle reasons under their older
// name; FAKE_NVML_ANCIENT leaves out one that they cannot do without.
#include "fake_nvml.h"

#include <cstring>

namespace {

using convoy::FakeField;

convoy::FakeNvml state;
int card;  // its address is the handle

// Success, and the field's value in `out`; or the field's failure. A question about another card is a defect.
int answer(void* device, FakeField field, unsigned* out) {
  ++state.questions;
  if (device != &card) return 2;
  *out = state.value(field);
  return state.code(field);
}

}  // namespace

extern "C" {

convoy::FakeNvml* fake_nvml() {
  return &state;
}

#ifndef FAKE_NVML_ANCIENT
int nvmlInit_v2() {
  if (state.code(FakeField::kInit) == 0) ++state.inits;
  return state.code(FakeField::kInit);
}
#endif

int nvmlShutdown() {
  ++state.shutdowns;
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &card;
  return index == 0 ? state.code(FakeField::kHandle).load() : 6;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  *device = &card;
  return std::strcmp(bus_id, convoy::kFakeBusId) == 0 ? state.code(FakeField::kHandle).load() : 6;
}

int nvmlDeviceGetName(void*, char* name, unsigned length) {
  std::strncpy(name, "Fake card", length);
  return state.code(FakeField::kName);
}

int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  rates[1] = 41;
  return answer(device, FakeField::kUtilization, rates);
}

int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  unsigned used = 0;
  const int code = answer(device, FakeField::kMemory, &used);
  memory[0] = 1000 * convoy::kFakeMemoryUnit;
  memory[1] = (1000 - used) * convoy::kFakeMemoryUnit;
  memory[2] = used * convoy::kFakeMemoryUnit;
  return code;
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  return answer(device, FakeField::kPower, milliwatts);
}

int nvmlDeviceGetClockInfo(void* device, int type, unsigned* clock) {
  if (type != 1 && type != 2) return 2;
  return answer(device, type == 1 ? FakeField::kSmClock : FakeField::kMemoryClock, clock);
}

int throttle_reasons(void* device, unsigned long long* reasons) {
  unsigned value = 0;
  const int code = answer(device, FakeField::kThrottle, &value);
  *reasons = value;
  return code;
}

#ifdef FAKE_NVML_PARTIAL
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  return throttle_reasons(device, reasons);
}
#else
int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* reasons) {
  return throttle_reasons(device, reasons);
}

const char* nvmlErrorString(int code) {
  return code == 4 ? "Insufficient Permissions" : "Some Failure";
}

int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* milliwatts) {
  return answer(device, FakeField::kPowerLimit, milliwatts);
}

int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* temperature) {
  if (sensor != 0) return 2;
  return answer(device, FakeField::kTemperature, temperature);
}
#endif

}  // extern "C"
