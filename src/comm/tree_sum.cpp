#include "comm/tree_sum.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace convoy {
namespace {

constexpr std::int64_t kBlock = 512;  // elements summed at a time: the partial sums stay in the first cache

template <typename T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};

template <typename T>
typename Wide<T>::type widen(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return value;
  } else {
    return to_float(value);
  }
}
template <typename T>
T narrow(typename Wide<T>::type value) {
  if constexpr (std::is_same_v<T, BF16>) {
    return to_bf16(value);
  } else if constexpr (std::is_same_v<T, F16>) {
    return to_f16(value);
  } else {
    return value;
  }
}

// A 16-bit sum is rounded at every addition, as it is where the tree's partial sums are tensors of their own: a sum
// over micro-batches does not depend on which of them are another rank's.
template <typename T>
typename Wide<T>::type sum(typename Wide<T>::type a, typename Wide<T>::type b) {
  return widen(narrow<T>(a + b));
}

template <typename T>
const T* operand(std::span<const std::byte* const> operands, std::size_t i, std::int64_t at) {
  return reinterpret_cast<const T*>(operands[i]) + at;
}

template <typename T>
void sum_two(std::span<const std::byte* const> operands, T* out, std::int64_t count) {
  const T* a = operand<T>(operands, 0, 0);
  const T* b = operand<T>(operands, 1, 0);
  for (std::int64_t i = 0; i < count; ++i) out[i] = narrow<T>(widen(a[i]) + widen(b[i]));
}

template <typename T>
void sum_four(std::span<const std::byte* const> operands, T* out, std::int64_t count) {
  const T* a = operand<T>(operands, 0, 0);
  const T* b = operand<T>(operands, 1, 0);
  const T* c = operand<T>(operands, 2, 0);
  const T* d = operand<T>(operands, 3, 0);
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = narrow<T>(sum<T>(widen(a[i]), widen(b[i])) + sum<T>(widen(c[i]), widen(d[i])));
}

// Like a binary counter: a partial sum of 2^l operands waits on level l for its neighbour.
template <typename T>
void sum_many(std::span<const std::byte* const> operands, T* out, std::int64_t count) {
  using W = typename Wide<T>::type;
  std::array<std::array<W, kBlock>, 11> levels;
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const std::int64_t n = std::min(kBlock, count - at);
    std::size_t waiting = 0;  // bits: the levels that hold a sum
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const T* values = operand<T>(operands, i, at);
      std::size_t level = 0;
      std::array<W, kBlock> carry;
      for (std::int64_t e = 0; e < n; ++e) carry[static_cast<std::size_t>(e)] = widen(values[e]);
      for (; (waiting >> level & 1) != 0; ++level) {
        for (std::int64_t e = 0; e < n; ++e) {
          const auto k = static_cast<std::size_t>(e);
          carry[k] = sum<T>(levels[level][k], carry[k]);
        }
        waiting &= ~(std::size_t{1} << level);
      }
      std::copy(carry.begin(), carry.begin() + n, levels[level].begin());
      waiting |= std::size_t{1} << level;
    }
    // What is left has no neighbour of its size: the smaller (right) into the larger.
    std::size_t level = 0;
    while ((waiting >> level & 1) == 0) ++level;
    std::array<W, kBlock>& all = levels[level];
    for (std::size_t higher = level + 1; higher < levels.size(); ++higher) {
      if ((waiting >> higher & 1) == 0) continue;
      for (std::int64_t e = 0; e < n; ++e) {
        const auto k = static_cast<std::size_t>(e);
        all[k] = sum<T>(levels[higher][k], all[k]);
      }
    }
    for (std::int64_t e = 0; e < n; ++e) out[at + e] = narrow<T>(all[static_cast<std::size_t>(e)]);
  }
}

template <typename T>
void sum_all(std::span<const std::byte* const> operands, std::byte* out, std::int64_t count) {
  T* result = reinterpret_cast<T*>(out);
  switch (operands.size()) {
    case 1: {
      const T* only = operand<T>(operands, 0, 0);
      if (only != result) std::copy(only, only + count, result);
      return;
    }
    case 2:
      return sum_two(operands, result, count);
    case 4:
      return sum_four(operands, result, count);
    default:
      return sum_many(operands, result, count);
  }
}

}  // namespace

void tree_sum(DType dtype, std::span<const std::byte* const> operands, std::byte* out, std::int64_t count) {
  check(!operands.empty() && operands.size() <= 1024, "a sum of no operands, or of more than 1024");
  switch (dtype) {
    case DType::kF32:
      return sum_all<float>(operands, out, count);
    case DType::kF64:
      return sum_all<double>(operands, out, count);
    case DType::kBF16:
      return sum_all<BF16>(operands, out, count);
    case DType::kF16:
      return sum_all<F16>(operands, out, count);
    default:
      throw internal_error("only floating-point numbers are summed over ranks");
  }
}

}  // namespace convoy
