#include "train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace convoy {
namespace {

void penalize(std::vector<float>& logits, const std::vector<std::int32_t>& history, double penalty) {
  std::vector<std::int32_t> tokens = history;
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (std::int32_t token : tokens) {
    if (static_cast<std::size_t>(token) >= logits.size()) continue;
    float& logit = logits[static_cast<std::size_t>(token)];
    logit = static_cast<float>(logit > 0 ? logit / penalty : logit * penalty);
  }
}

}  // namespace

std::int32_t sample_token(std::vector<float>& logits, const std::vector<std::int32_t>& history,
                          const SamplingOptions& options, RandomStream& random) {
  if (options.vocab > 0 && options.vocab < static_cast<std::int64_t>(logits.size())) {
    logits.resize(static_cast<std::size_t>(options.vocab));
  }
  if (options.repetition_penalty != 1.0) penalize(logits, history, options.repetition_penalty);
  const auto best = std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(*best)) throw numerics_error("the model's logits are not finite").mend("check the weights");
  if (options.temperature <= 0) return static_cast<std::int32_t>(best - logits.begin());
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto more_likely = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(order.size())) {
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(), more_likely);
    order.resize(static_cast<std::size_t>(options.top_k));
  } else {
    std::sort(order.begin(), order.end(), more_likely);
  }
  std::vector<double> weights;
  double total = 0;
  for (std::int32_t token : order) {
    weights.push_back(
        std::exp((static_cast<double>(logits[static_cast<std::size_t>(token)]) - *best) / options.temperature));
    total += weights.back();
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && weights[count] > 0 && (count == 0 || kept < options.top_p * total))
    kept += weights[count++];
  double point = static_cast<double>(random.bits64() >> 11) * 0x1p-53 * kept;
  for (std::size_t i = 0; i < count; ++i) {
    point -= weights[i];
    if (point < 0) return order[i];
  }
  return order[count - 1];
}

double log_probability(std::span<const float> logits, std::int32_t token) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return static_cast<double>(logits[static_cast<std::size_t>(token)]) - most - std::log(sum);
}

}  // namespace convoy
