#include "models/model.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "base/random.h"

namespace convoy {

std::int64_t Model::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters()) count += parameter.shape.numel();
  return count;
}

std::uint64_t row_key(std::uint64_t token_key, std::int64_t place) {
  // SplitMix64's steps (Steele et al., 2014): neighbouring keys give unrelated ones.
  std::uint64_t x = token_key + 0x9e3779b97f4a7c15U * (static_cast<std::uint64_t>(place) + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

void initialize(const Parameter& parameter, std::size_t index, std::uint64_t seed, std::span<float> values) {
  if (parameter.sinusoids) {
    const std::int64_t width = parameter.shape[1], half = width / 2;
    for (std::int64_t row = 0; row < parameter.shape[0]; ++row) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double exponent = half > 1 ? static_cast<double>(i) / static_cast<double>(half - 1) : 0;
        const double angle = static_cast<double>(row) * std::pow(10000.0, -exponent);
        values[static_cast<std::size_t>(row * width + i)] = static_cast<float>(std::sin(angle));
        values[static_cast<std::size_t>(row * width + half + i)] = static_cast<float>(std::cos(angle));
      }
    }
    return;
  }
  if (parameter.init_std == 0 && parameter.init_bound == 0) {
    std::fill(values.begin(), values.end(), parameter.init_value);
    return;
  }
  // Each piece has a random stream of its own, so that the pool can draw them side by side.
  constexpr std::size_t kPiece = 1 << 16;
  const bool uniform = parameter.init_std == 0;
  const auto size = static_cast<float>(uniform ? parameter.init_bound : parameter.init_std);
  parallel_for(static_cast<std::int64_t>((values.size() + kPiece - 1) / kPiece), [&](std::int64_t piece) {
    RandomStream random(seed, (static_cast<std::uint64_t>(index + 1) << 32) + static_cast<std::uint64_t>(piece));
    const std::size_t begin = static_cast<std::size_t>(piece) * kPiece;
    for (float& value : values.subspan(begin, std::min(kPiece, values.size() - begin)))
      value = size * (uniform ? 2 * random.uniform() - 1 : random.normal());
  });
  if (parameter.zero_row >= 0) {
    const std::int64_t width = parameter.shape.numel() / parameter.shape[0];
    std::fill_n(values.begin() + parameter.zero_row * width, width, 0.0f);
  }
}

}  // namespace convoy
