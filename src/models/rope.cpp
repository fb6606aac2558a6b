#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace convoy {
namespace {

std::vector<double> base_frequencies(double theta, std::int64_t r) {
  std::vector<double> f(static_cast<std::size_t>(r / 2));
  for (std::size_t i = 0; i < f.size(); ++i)
    f[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(r));
  return f;
}

void scale_llama3(const RopeConfig& c, std::vector<double>& f) {
  const auto original = static_cast<double>(c.original_max_positions);
  for (double& each : f) {
    const double wavelength = 2 * std::numbers::pi / each;
    if (wavelength > original / c.low_freq_factor) {
      each /= c.factor;
    } else if (wavelength >= original / c.high_freq_factor) {
      const double t = (original / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
      each = (1 - t) * each / c.factor + t * each;
    }
  }
}

double yarn_mscale(double scale, double m) {
  return scale <= 1 ? 1 : 0.1 * m * std::log(scale) + 1;
}

void scale_yarn(const RopeConfig& c, std::vector<double>& f) {
  const auto r = static_cast<double>(c.rotary_dim);
  const auto dim_of = [&](double rotations) {
    return r * std::log(static_cast<double>(c.original_max_positions) / (2 * std::numbers::pi * rotations)) /
           (2 * std::log(c.theta));
  };
  double low = dim_of(c.beta_fast);
  double high = dim_of(c.beta_slow);
  if (c.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::clamp(low, 0.0, r - 1);
  high = std::clamp(high, 0.0, r - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < f.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    f[i] = f[i] / c.factor * ramp + f[i] * (1 - ramp);
  }
}

double yarn_attention_factor(const RopeConfig& c) {
  if (c.attention_factor > 0) return c.attention_factor;
  if (c.mscale > 0 && c.mscale_all_dim > 0)
    return yarn_mscale(c.factor, c.mscale) / yarn_mscale(c.factor, c.mscale_all_dim);
  return yarn_mscale(c.factor, 1);
}

double longrope_attention_factor(const RopeConfig& c) {
  if (c.attention_factor > 0) return c.attention_factor;
  if (c.factor <= 1) return 1;
  return std::sqrt(1 + std::log(c.factor) / std::log(static_cast<double>(c.original_max_positions)));
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& c, std::int64_t length) {
  const auto r = static_cast<double>(c.rotary_dim);
  double theta = c.theta;
  if (c.type == RopeConfig::Type::kDynamic) {
    const auto m = static_cast<double>(c.max_positions);
    const double t = std::max(m, static_cast<double>(length));
    theta *= std::pow(c.factor * t / m - (c.factor - 1), r / (r - 2));
  }
  std::vector<double> f = base_frequencies(theta, c.rotary_dim);
  double attention_factor = 1;
  switch (c.type) {
    case RopeConfig::Type::kDefault:
    case RopeConfig::Type::kDynamic:
      break;
    case RopeConfig::Type::kLinear:
      for (double& each : f) each /= c.factor;
      break;
    case RopeConfig::Type::kLlama3:
      scale_llama3(c, f);
      break;
    case RopeConfig::Type::kYarn:
      scale_yarn(c, f);
      attention_factor = yarn_attention_factor(c);
      break;
    case RopeConfig::Type::kLongRope: {
      const auto& factors = length > c.original_max_positions ? c.long_factor : c.short_factor;
      check(factors.size() == f.size(), "longrope: one factor per frequency");
      for (std::size_t i = 0; i < f.size(); ++i) f[i] /= factors[i];
      attention_factor = longrope_attention_factor(c);
      break;
    }
  }
  return {{f.begin(), f.end()}, static_cast<float>(attention_factor)};
}

void fill_rope_tables(const RopeConfig& config, std::int64_t length, std::span<float> cosines, std::span<float> sines) {
  const RopeFrequencies frequencies = rope_frequencies(config, length);
  const std::size_t half = frequencies.inv_freq.size();
  const std::size_t positions = cosines.size() / half;
  for (std::size_t p = 0; p < positions; ++p) {
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequencies.inv_freq[i];
      cosines[p * half + i] = std::cos(angle) * frequencies.attention_factor;
      sines[p * half + i] = std::sin(angle) * frequencies.attention_factor;
    }
  }
}

}  // namespace convoy
