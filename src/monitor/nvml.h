// What a graphics card tells about itself through NVIDIA's management library. The library is opened at run time, so
// that one binary also starts where there is none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace convoy {

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// One look at a card. What the card, its driver or the process's rights do not allow to be read is absent.
struct GpuSample {
  std::optional<double> utilization;                // share of the last moments in which a kernel ran, 0 to 1
  std::optional<double> memory_utilization;         // share of them in which device memory was read or written, 0 to 1
  std::optional<double> memory_used, memory_total;  // bytes, of all processes
  std::optional<double> power, power_limit;         // watts
  std::optional<double> sm_clock, memory_clock;     // MHz
  std::optional<double> temperature;                // degrees Celsius
  std::optional<std::uint64_t> throttle_reasons;    // see throttle_words
};

// Why the clocks are lower than they could be, in words: "power cap", "thermal", "power brake", "hardware slowdown",
// "clock setting", "sync boost". An idle card is not held back.
std::vector<std::string> throttle_words(std::uint64_t reasons);

// A card. Not for several threads at once.
class GpuCard {
 public:
  // `device`: the PCI bus id ("0000:1b:00.0"; CUDA's numbers and NVML's differ under CUDA_VISIBLE_DEVICES), or the
  // library's index ("0"). `library`: a name or path for dlopen. Throws a usage error where the library is not there,
  // is too old or fails, or knows no such card.
  explicit GpuCard(const std::string& device, const std::string& library = kNvmlLibrary);
  ~GpuCard();
  GpuCard(const GpuCard&) = delete;
  GpuCard& operator=(const GpuCard&) = delete;

  const std::string& name() const { return name_; }
  GpuSample sample();
  // Whether the last look found the card gone; there is no use in another.
  bool lost() const { return lost_; }
  // What could not be read since the last call, and why: each once. A figure that the card does not have is no failure.
  std::vector<std::string> take_failures();

 private:
  struct Library;
  bool read(const char* what, int code);
  std::unique_ptr<Library> library_;
  std::string name_;
  bool lost_ = false;
  std::set<std::string> told_;
  std::vector<std::string> failures_;
};

}  // namespace convoy
