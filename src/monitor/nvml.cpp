#include "monitor/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace convoy {
namespace {

// The library's C interface as far as it is used here; these types and numbers are fixed for its lifetime.
using Device = void*;

struct Utilization {
  unsigned gpu, memory;  // percent
};

struct Memory {
  unsigned long long total, free, used;  // bytes
};

enum Code : int { kSuccess = 0, kNotSupported = 3, kLost = 15 };
enum Clock : int { kSmClock = 1, kMemoryClock = 2 };
constexpr int kDieSensor = 0;

enum Reason : std::uint64_t {
  kApplicationClocks = 0x2,
  kSoftwarePowerCap = 0x4,
  kHardwareSlowdown = 0x8,
  kSyncBoost = 0x10,
  kSoftwareThermal = 0x20,
  kHardwareThermal = 0x40,
  kPowerBrake = 0x80,
  kDisplayClock = 0x100,
};

}  // namespace

std::vector<std::string> throttle_words(std::uint64_t reasons) {
  std::vector<std::string> words;
  if ((reasons & kSoftwarePowerCap) != 0) words.emplace_back("power cap");
  if ((reasons & (kSoftwareThermal | kHardwareThermal)) != 0) words.emplace_back("thermal");
  if ((reasons & kPowerBrake) != 0) words.emplace_back("power brake");
  // The general bit accompanies the two particular ones.
  if ((reasons & kHardwareSlowdown) != 0 && (reasons & (kHardwareThermal | kPowerBrake)) == 0)
    words.emplace_back("hardware slowdown");
  if ((reasons & (kApplicationClocks | kDisplayClock)) != 0) words.emplace_back("clock setting");
  if ((reasons & kSyncBoost) != 0) words.emplace_back("sync boost");
  return words;
}

// The opened library and the card's handle in it.
struct GpuCard::Library {
  explicit Library(const std::string& path) : file(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (file == nullptr) {
      const char* reason = dlerror();
      throw usage_error(fmt::format("cannot open NVML: {}", reason == nullptr ? "no reason given" : reason))
          .at(path)
          .mend("install NVIDIA's driver, which brings it");
    }
  }
  ~Library() {
    if (started) shutdown();
    dlclose(file);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename Function>
  void optional(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(file, symbol));
  }
  template <typename Function>
  void required(Function& function, const char* symbol, const std::string& path) {
    optional(function, symbol);
    if (function == nullptr) {
      throw usage_error(fmt::format("this NVML has no {}", symbol))
          .at(path)
          .mend("update NVIDIA's driver, which brings it");
    }
  }

  void resolve(const std::string& path) {
    required(init, "nvmlInit_v2", path);
    required(shutdown, "nvmlShutdown", path);
    required(count, "nvmlDeviceGetCount_v2", path);
    required(by_index, "nvmlDeviceGetHandleByIndex_v2", path);
    required(by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2", path);
    optional(error_string, "nvmlErrorString");
    optional(name, "nvmlDeviceGetName");
    optional(utilization, "nvmlDeviceGetUtilizationRates");
    optional(memory, "nvmlDeviceGetMemoryInfo");
    optional(power, "nvmlDeviceGetPowerUsage");
    optional(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    optional(clock, "nvmlDeviceGetClockInfo");
    optional(temperature, "nvmlDeviceGetTemperature");
    // The same under its newer and its older name.
    optional(throttle_reasons, "nvmlDeviceGetCurrentClocksEventReasons");
    if (throttle_reasons == nullptr) optional(throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  }

  std::string words(int code) const {
    const char* text = error_string == nullptr ? nullptr : error_string(code);
    return text == nullptr ? fmt::format("error {}", code) : fmt::format("{} (error {})", text, code);
  }

  void* const file;
  bool started = false;
  Device device = nullptr;

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*by_index)(unsigned, Device*) = nullptr;
  int (*by_bus_id)(const char*, Device*) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;        // milliwatts
  int (*power_limit)(Device, unsigned*) = nullptr;  // milliwatts
  int (*clock)(Device, int, unsigned*) = nullptr;   // MHz
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*throttle_reasons)(Device, unsigned long long*) = nullptr;
};

GpuCard::GpuCard(const std::string& device, const std::string& library) : library_(std::make_unique<Library>(library)) {
  library_->resolve(library);
  if (const int code = library_->init(); code != kSuccess) {
    throw usage_error(fmt::format("NVML does not start: {}", library_->words(code)))
        .at(library)
        .mend("see whether nvidia-smi works here");
  }
  library_->started = true;
  const bool is_index = !device.empty() && device.size() <= 6 &&
                        std::all_of(device.begin(), device.end(), [](char c) { return c >= '0' && c <= '9'; });
  const int code = is_index ? library_->by_index(static_cast<unsigned>(std::stoul(device)), &library_->device)
                            : library_->by_bus_id(device.c_str(), &library_->device);
  if (code != kSuccess) {
    unsigned cards = 0;
    const std::string there =
        library_->count(&cards) == kSuccess ? fmt::format("; it knows {} card{}", cards, cards == 1 ? "" : "s") : "";
    throw usage_error(fmt::format("NVML has no card '{}': {}{}", device, library_->words(code), there))
        .at(library)
        .mend("give a PCI bus id or an index that nvidia-smi shows");
  }
  std::array<char, 128> text{};
  if (library_->name != nullptr && library_->name(library_->device, text.data(), text.size() - 1) == kSuccess)
    name_ = text.data();
}

GpuCard::~GpuCard() = default;

// Whether the call succeeded; a failure is told the first time.
bool GpuCard::read(const char* what, int code) {
  if (code == kSuccess) return true;
  if (code == kNotSupported) return false;
  lost_ = lost_ || code == kLost;
  if (std::string failure = fmt::format("{}: {}", what, library_->words(code)); told_.insert(failure).second)
    failures_.push_back(std::move(failure));
  return false;
}

GpuSample GpuCard::sample() {
  GpuSample sample;
  // A card that is lost fails every question alike; one answer is enough.
  const auto ask = [&](const char* what, auto* function, auto&&... arguments) {
    return !lost_ && function != nullptr && read(what, function(library_->device, arguments...));
  };
  const Library& nvml = *library_;
  Utilization utilization{};
  if (ask("utilization", nvml.utilization, &utilization)) {
    sample.utilization = utilization.gpu / 100.0;
    sample.memory_utilization = utilization.memory / 100.0;
  }
  Memory memory{};
  if (ask("memory", nvml.memory, &memory)) {
    sample.memory_used = static_cast<double>(memory.used);
    sample.memory_total = static_cast<double>(memory.total);
  }
  unsigned value = 0;
  if (ask("power", nvml.power, &value)) sample.power = value / 1000.0;
  if (ask("power limit", nvml.power_limit, &value)) sample.power_limit = value / 1000.0;
  if (ask("SM clock", nvml.clock, kSmClock, &value)) sample.sm_clock = value;
  if (ask("memory clock", nvml.clock, kMemoryClock, &value)) sample.memory_clock = value;
  if (ask("temperature", nvml.temperature, kDieSensor, &value)) sample.temperature = value;
  unsigned long long reasons = 0;
  if (ask("throttle reasons", nvml.throttle_reasons, &reasons)) sample.throttle_reasons = reasons;
  return sample;
}

std::vector<std::string> GpuCard::take_failures() {
  return std::exchange(failures_, {});
}

}  // namespace convoy
