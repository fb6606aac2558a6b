// Gradient norm, accumulation and the optimizer.
#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "cpu/registry.h"
#include "cpu/row_kernels.h"
#include "graph/ops/update.h"

namespace convoy::cpu {
namespace {

constexpr std::int64_t kUpdateRun = 32768;

// The sum of partial[0…count) by a fixed binary tree, in place.
double tree_sum(double* partial, std::int64_t count) {
  for (std::int64_t stride = 1; stride < count; stride *= 2) {
    for (std::int64_t i = 0; i + stride < count; i += 2 * stride) partial[i] += partial[i + stride];
  }
  return count > 0 ? partial[0] : 0;
}

// One run of one tensor.
struct Task {
  std::size_t tensor;
  std::int64_t first, count;
};

std::vector<Task> cut(const std::vector<std::int64_t>& sizes, std::int64_t run) {
  std::vector<Task> tasks;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    for (std::int64_t at = 0; at < sizes[t]; at += run) tasks.push_back({t, at, std::min(run, sizes[t] - at)});
  }
  return tasks;
}

void register_square_sums(Registry& registry) {
  registry.add<SquareSums>([](const SquareSums& op, const Request& q) {
    struct Block {
      std::size_t tensor;
      std::int64_t first, count, result;  // the first in bytes
      const RowKernels* kernels;
    };
    std::vector<Block> blocks;
    for (std::size_t t = 0; t < op.parts.size(); ++t) {
      const SquareSums::Part& part = op.parts[t];
      const auto [dtype, shape] = *q.inputs[t];
      const auto size = static_cast<std::int64_t>(size_of(dtype));
      for (std::int64_t at = 0; at < shape.numel(); at += part.block)
        blocks.push_back({t, at * size, std::min(part.block, shape.numel() - at), part.first_block + at / part.block,
                          &row_kernels(dtype)});
    }
    return [blocks = std::move(blocks), all = op.blocks](const KernelArguments& a) {
      auto* sums = reinterpret_cast<double*>(a.outputs[0]);
      std::fill(sums, sums + all + 1, 0.0);
      const auto count = static_cast<std::int64_t>(blocks.size());
      std::int64_t bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad)
      for (std::int64_t i = 0; i < count; ++i) {
        const Block& block = blocks[static_cast<std::size_t>(i)];
        sums[block.result] = block.kernels->sum_of_squares(a.inputs[block.tensor] + block.first, block.count, &bad);
      }
      sums[all] = static_cast<double>(bad);
    };
  });
}

void register_norm_of_sums(Registry& registry) {
  registry.add<NormOfSums>(
      [](const NormOfSums& op, const Request&) {
        return [blocks = op.tensor_blocks, limit = op.max_norm, epsilon = op.epsilon](const KernelArguments& a) {
          const auto* sums = reinterpret_cast<const double*>(a.inputs[0]);
          const double unscale = reinterpret_cast<const double*>(a.inputs[1])[kUnscale];
          // Within each tensor, then over the tensors.
          auto* by_tensor = reinterpret_cast<double*>(a.workspace);
          double* scratch = by_tensor + blocks.size();
          for (std::size_t t = 0; t < blocks.size(); ++t) {
            std::copy(sums, sums + blocks[t], scratch);
            by_tensor[t] = tree_sum(scratch, blocks[t]);
            sums += blocks[t];
          }
          const double norm = std::sqrt(tree_sum(by_tensor, static_cast<std::int64_t>(blocks.size()))) * unscale;
          auto* result = reinterpret_cast<double*>(a.outputs[0]);
          result[kNorm] = norm;
          result[kNonFinite] = sums[0] > 0 || !std::isfinite(norm) ? 1 : 0;
          result[kGradientFactor] = unscale * (limit > 0 ? std::min(1.0, limit / (norm + epsilon)) : 1.0);
          result[3] = 0;
        };
      },
      [](const NormOfSums& op, const Request&) {
        const std::int64_t most =
            op.tensor_blocks.empty() ? 0 : *std::max_element(op.tensor_blocks.begin(), op.tensor_blocks.end());
        return (op.tensor_blocks.size() + static_cast<std::size_t>(most)) * sizeof(double);
      });
}

void register_accumulate(Registry& registry) {
  registry.add<AccumulateGradients>([](const AccumulateGradients&, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    const auto size = static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    return [&k, n = q.outputs[0].numel(), size](const KernelArguments& a) {
#pragma omp parallel for schedule(static)
      for (std::int64_t piece = 0; piece < pieces(n, kUpdateRun); ++piece) {
        const std::int64_t at = piece * kUpdateRun * size;
        k.add(a.outputs[0] + at, a.inputs[0] + at, a.outputs[0] + at, std::min(kUpdateRun, n - piece * kUpdateRun));
      }
    };
  });
}

// Calls body(first, count) for the stretches of elements that are not exactly zero.
template <typename T, typename Body>
void nonzero_runs(const T* values, std::int64_t count, const Body& body) {
  std::int64_t i = 0;
  while (i < count) {
    while (i < count && values[i] == 0) ++i;
    const std::int64_t first = i;
    while (i < count && values[i] != 0) ++i;
    if (i > first) body(first, i - first);
  }
}
template <typename Body>
void for_nonzero_runs(bool is_double, const std::byte* values, std::int64_t count, const Body& body) {
  if (is_double) {
    nonzero_runs(reinterpret_cast<const double*>(values), count, body);
  } else {
    nonzero_runs(reinterpret_cast<const float*>(values), count, body);
  }
}

OptimizerRun run_of(const OptimizerSettings& s, const double* scalars, const double* norm) {
  const double step = scalars[kStepNumber];
  OptimizerRun run{};
  run.learning_rate = scalars[kLearningRate];
  run.beta1 = s.beta1;
  run.beta2 = s.beta2;
  run.eps = s.eps;
  run.bias_correction1 = 1 - std::pow(s.beta1, step);
  run.bias_correction2 = 1 - std::pow(s.beta2, step);
  run.gradient_scale = norm[kGradientFactor];
  run.momentum = s.momentum;
  run.dampening = s.dampening;
  run.nesterov = s.nesterov;
  run.first_step = step <= 1;
  run.kind = static_cast<int>(s.kind);
  return run;
}

// State in bfloat16, rounded stochastically: the 16 bits that it drops carry at random. And gradients in 16 bits.
struct NarrowState {
  DType weight, moment;
  bool master;
  bool rounds() const { return moment == DType::kBF16 || (!master && weight == DType::kBF16); }

  // Elements [first, first + length) of the task, through float32 copies.
  void update(const RowKernels& k, const OptimizerRun& run, const OptimizerStep& op, const Task& task, DType gradient,
              std::byte* const* in, std::uint32_t step, std::int64_t first, std::int64_t length) const {
    constexpr std::int64_t kPiece = 1024;
    const int moments = op.settings.moments();
    const std::size_t first_moment = op.master ? 3 : 2;
    for (std::int64_t done = 0; done < length; done += kPiece) {
      const std::int64_t count = std::min(kPiece, length - done), at = task.first + first + done;
      float states[3][kPiece];  // the moments, and the weight where it has no other copy
      float gradients[kPiece];
      widen(gradient, in[1], at, count, gradients);
      for (int m = 0; m < moments; ++m)
        widen(moment, in[first_moment + static_cast<std::size_t>(m)], at, count, states[m]);
      const bool own_weight = !master && weight == DType::kBF16;
      if (own_weight) widen(weight, in[0], at, count, states[2]);
      k.optimizer(run, in[0] + at * static_cast<std::int64_t>(size_of(weight)),
                  own_weight ? static_cast<void*>(states[2]) : (op.master ? in[2] + at * std::int64_t{4} : nullptr),
                  gradients, states[0], states[1], count);
      const OptimizerStep::Origin& origin = op.origins[task.tensor];
      PhiloxCounter block{};
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t element = origin.first + at + i;
        if (rounds() && (i == 0 || element % 4 == 0))
          block = rounding_block(op.settings.seed, origin.tensor, static_cast<std::uint64_t>(element) / 4, step);
        const RoundingBits bits = rounding_bits(block, element);
        for (int m = 0; m < moments; ++m) {
          std::byte* to = in[first_moment + static_cast<std::size_t>(m)];
          if (moment == DType::kBF16) {
            reinterpret_cast<BF16*>(to)[at + i] = round_at_random(states[m][i], bits.moment[m]);
          } else {
            reinterpret_cast<float*>(to)[at + i] = states[m][i];
          }
        }
        if (own_weight) reinterpret_cast<BF16*>(in[0])[at + i] = round_at_random(states[2][i], bits.weight);
      }
    }
  }

  static void widen(DType dtype, const std::byte* from, std::int64_t at, std::int64_t count, float* to) {
    if (dtype == DType::kF32) {
      std::copy_n(reinterpret_cast<const float*>(from) + at, count, to);
    } else if (dtype == DType::kBF16) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(reinterpret_cast<const BF16*>(from)[at + i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(reinterpret_cast<const F16*>(from)[at + i]);
    }
  }
};

void register_optimizer(Registry& registry) {
  registry.add<OptimizerStep>([](const OptimizerStep& op, const Request& q) {
    const auto group = static_cast<std::size_t>(op.inputs_per_weight());
    const DType dtype = op.weight_decays.empty() ? DType::kF32 : q.inputs[2]->dtype;
    std::vector<std::int64_t> sizes;
    std::vector<DType> gradients;
    for (std::size_t w = 0; w < op.weight_decays.size(); ++w) {
      sizes.push_back(q.inputs[2 + w * group]->numel());
      gradients.push_back(q.inputs[3 + w * group]->dtype);
      check(!op.masked[w] || gradients.back() == accumulation_dtype(dtype),
            "a masked table's gradient is not narrowed");
    }
    check(op.master || dtype != DType::kF16, "the CPU device updates float16 weights with a master copy only");
    const RowKernels& k = row_kernels(dtype);
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    const auto wide = static_cast<std::int64_t>(size_of(accumulation_dtype(dtype)));
    return [&k, op, dtype, group, size, wide, gradients = std::move(gradients),
            tasks = cut(sizes, kUpdateRun)](const KernelArguments& a) {
      const auto* norm = reinterpret_cast<const double*>(a.inputs[1]);
      if (norm[kNonFinite] != 0) return;
      const OptimizerRun common = run_of(op.settings, reinterpret_cast<const double*>(a.inputs[0]), norm);
      const int moments = op.settings.moments();
      const NarrowState narrow{dtype, op.settings.moment_dtype, op.master};
      const auto step = static_cast<std::uint32_t>(reinterpret_cast<const double*>(a.inputs[0])[kStepNumber]);
      const auto count = static_cast<std::int64_t>(tasks.size());
#pragma omp parallel for schedule(static)
      for (std::int64_t i = 0; i < count; ++i) {
        const Task& task = tasks[static_cast<std::size_t>(i)];
        OptimizerRun run = common;
        run.weight_decay = static_cast<double>(op.weight_decays[task.tensor]);
        std::byte* const* in = a.inputs.data() + 2 + task.tensor * group;
        const std::size_t first_moment = op.master ? 3 : 2;
        const auto at = [&](std::size_t index) { return in[index] + task.first * wide; };
        const auto update = [&](std::int64_t first, std::int64_t length) {
          const DType gradient = gradients[task.tensor];
          if (narrow.rounds() || gradient != accumulation_dtype(dtype))
            return narrow.update(k, run, op, task, gradient, in, step, first, length);
          const auto from = [&](std::size_t index) { return at(index) + first * wide; };
          k.optimizer(run, in[0] + (task.first + first) * size, op.master ? from(2) : nullptr, from(1),
                      moments > 0 ? from(first_moment) : nullptr, moments > 1 ? from(first_moment + 1) : nullptr,
                      length);
        };
        if (op.masked[task.tensor]) {
          for_nonzero_runs(wide == sizeof(double), at(1), task.count, update);
        } else {
          update(0, task.count);
        }
      }
    };
  });
}

}  // namespace

void register_update(Registry& registry) {
  register_square_sums(registry);
  register_norm_of_sums(registry);
  register_accumulate(registry);
  register_optimizer(registry);
}

}  // namespace convoy::cpu
