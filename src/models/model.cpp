#include "models/model.h"

#include <algorithm>

#include "base/random.h"

namespace convoy {

std::int64_t Model::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters()) count += parameter.shape.numel();
  return count;
}

void initialize(const Parameter& parameter, std::size_t index, std::uint64_t seed, std::span<float> values) {
  if (parameter.init_std == 0) {
    std::fill(values.begin(), values.end(), parameter.init_value);
    return;
  }
  RandomStream random(seed, 0x1000000000ull + index);
  for (float& value : values) value = static_cast<float>(parameter.init_std) * random.normal();
  if (parameter.zero_row >= 0) {
    const std::int64_t width = parameter.shape.numel() / parameter.shape[0];
    std::fill_n(values.begin() + parameter.zero_row * width, width, 0.0f);
  }
}

}  // namespace convoy
