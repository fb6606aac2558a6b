#include "train/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace convoy {
namespace {

constexpr std::int64_t kShortest = 32;

// Lengths are padded to powers of two, so that few programs serve all.
std::int64_t padded(std::int64_t length, std::int64_t longest) {
  std::int64_t size = kShortest;
  while (size < length) size *= 2;
  return std::min(size, std::max(longest, length));
}

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
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) kept += weights[count++];
  double point = static_cast<double>(random.bits64() >> 11) * 0x1p-53 * kept;
  for (std::size_t i = 0; i < count; ++i) {
    point -= weights[i];
    if (point < 0) return order[i];
  }
  return order[count - 1];
}

Generator::Generator(Device& device, const Model& model, DType dtype, std::int64_t max_length)
    : device_(device), model_(model), dtype_(dtype), max_length_(max_length) {
  if (model.positions_are_learned()) max_length_ = std::min(max_length_, model.max_positions());
  check(max_length_ > 0, "a generator needs room for a token");
  LogitsProgram largest = make_logits_program(model, dtype, padded(max_length_, max_length_), 1, device);
  layout_ = largest.layout;
  sizes_ = largest.sizes;
  arenas_ = std::make_unique<Arenas>(device, sizes_);
  store_ = std::make_unique<ParameterStore>(device, model, layout_, *arenas_);
}

Generator::Stage& Generator::stage(std::int64_t length) {
  const std::int64_t size = padded(length, max_length_);
  const auto [place, fresh] = stages_.try_emplace(size);
  Stage& made = place->second;
  if (fresh) {
    made.made = make_logits_program(model_, dtype_, size, 1, device_);
    made.executor = std::make_unique<Executor>(device_, made.made.program, *arenas_);
  }
  return made;
}

std::vector<float> Generator::logits(const std::vector<std::int32_t>& ids) {
  check(!ids.empty(), "no token to continue");
  Stage& now = stage(static_cast<std::int64_t>(ids.size()));
  const std::int64_t size = padded(static_cast<std::int64_t>(ids.size()), max_length_);
  const auto put = [&](const char* name, std::span<const std::byte> bytes) {
    if (!now.made.layout.contains(Role::kBatch, name)) return;
    device_.copy_in(arenas_->base(Role::kBatch) + now.made.layout.find(Role::kBatch, name).offset, bytes);
  };
  std::vector<std::int32_t> tokens = ids;
  tokens.resize(static_cast<std::size_t>(size), 0);  // causal attention: what follows changes nothing
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<std::int32_t> starts(tokens.size(), 0);
  const std::vector<std::int32_t> rows = {static_cast<std::int32_t>(ids.size()) - 1};
  put(batch_input::kIds, std::as_bytes(std::span(tokens)));
  put(batch_input::kPositions, std::as_bytes(std::span(positions)));
  put(batch_input::kSeqStart, std::as_bytes(std::span(starts)));
  put(batch_input::kRows, std::as_bytes(std::span(rows)));
  if (now.made.layout.contains(Role::kBatch, batch_input::kRopeCos)) {
    const auto count = static_cast<std::size_t>(now.made.layout.find(Role::kBatch, batch_input::kRopeCos).spec.numel());
    std::vector<float> cosines(count), sines(count);
    model_.fill_tables(static_cast<std::int64_t>(ids.size()), cosines, sines);
    put(batch_input::kRopeCos, std::as_bytes(std::span(cosines)));
    put(batch_input::kRopeSin, std::as_bytes(std::span(sines)));
  }
  now.executor->run();
  const BufferRef& ref = now.made.program.output("logits");
  std::vector<std::byte> raw(ref.spec.bytes());
  device_.copy_out(raw, arenas_->base(ref.arena) + ref.offset);
  std::vector<float> values(static_cast<std::size_t>(ref.spec.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(load_float(ref.spec.dtype, raw.data() + i * size_of(ref.spec.dtype)));
  }
  return values;
}

std::vector<std::int32_t> Generator::generate(std::vector<std::int32_t> ids, std::int64_t max_new_tokens,
                                              const std::vector<std::int32_t>& stop_tokens,
                                              const SamplingOptions& options,
                                              const std::function<void(std::int32_t)>& on_token) {
  if (static_cast<std::int64_t>(ids.size()) >= max_length_) {
    throw usage_error("the prompt leaves no room for a new token").mend("shorten the prompt or raise --max_length");
  }
  RandomStream random(options.seed, 0x5a);
  std::vector<std::int32_t> made;
  while (static_cast<std::int64_t>(made.size()) < max_new_tokens &&
         static_cast<std::int64_t>(ids.size()) < max_length_) {
    std::vector<float> now = logits(ids);
    const std::int32_t token = sample_token(now, ids, options, random);
    ids.push_back(token);
    made.push_back(token);
    if (on_token) on_token(token);
    if (std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end()) break;
  }
  return made;
}

}  // namespace convoy
