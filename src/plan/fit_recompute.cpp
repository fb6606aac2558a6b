#include "plan/fit_recompute.h"

#include <algorithm>

namespace convoy {

MachineRates machine_rates(const std::optional<Ceilings>& ceilings, DType dtype, bool has_own_memory) {
  // An H200's with 16-bit products, and two cores' of a server; only the ratios matter.
  MachineRates rates = has_own_memory ? MachineRates{6e14, 4e14, 4e12} : MachineRates{2e11, 1e11, 2e10};
  if (!ceilings) return rates;
  rates.product = ceilings->best_product(name_of(dtype)) * 1e12;
  rates.attention = rates.product * 2 / 3;
  double best = 0;
  for (const Ceilings::Attention& each : ceilings->attention) best = std::max(best, each.forward_tflops);
  if (best > 0) rates.attention = best * 1e12;
  if (ceilings->copy) rates.copy = *ceilings->copy * 1e9;
  return rates;
}

std::int64_t fitting_recompute_steps(const Model& model, const TrainShape& shape, const WorkspaceSizes& workspaces,
                                     const MemoryLimit& limit, const BytesBeside& beside) {
  const auto fits = [&](std::int64_t steps) {
    TrainShape tried = shape;
    tried.recompute_steps = steps;
    const ProgramSet set = make_programs(model, tried, workspaces);
    return set.sizes.total() + (beside ? beside(tried, set) : 0) <= limit.device;
  };
  std::int64_t low = shape.recompute_steps;  // does not fit, from here on
  if (fits(low)) return low;
  const auto all = static_cast<std::int64_t>(recompute_steps(model, shape).size());
  std::int64_t high = std::max(low, all);
  if (!fits(high)) return high;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace convoy
