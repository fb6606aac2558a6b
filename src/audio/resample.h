// Change of sampling rate (soxr, its high-quality recipe: 20 bits, linear phase, pass band to 0.913 of the lower
// Nyquist frequency). Also changes speed: a recording taken as `speed` times its rate plays that much faster, at a
// higher pitch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace convoy {

// A stream of mono samples from one rate to another. Rates in Hz; equal rates pass samples through unchanged.
// The result does not depend on how the input is cut. Throws a usage error for rates that are not positive and finite
// or lie more than a factor of 4096 apart.
class Resampler {
 public:
  Resampler(double from, double to);
  ~Resampler();
  Resampler(const Resampler&) = delete;
  Resampler& operator=(const Resampler&) = delete;
  // Appends to `out` what can be made so far.
  void add(std::span<const float> samples, std::vector<float>& out);
  // Appends the rest; nothing may be added afterwards.
  void finish(std::vector<float>& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// n samples become n · to / from, rounded.
std::vector<float> resample(std::span<const float> samples, double from, double to);

}  // namespace convoy
