// Runs of columns of packed rows.
#include <algorithm>
#include <cstring>

#include "cpu/registry.h"
#include "cpu/row_kernels.h"
#include "graph/ops/columns.h"

namespace convoy::cpu {
namespace {

constexpr std::int64_t kRows = 16;  // rows of one task

template <typename F>
void for_rows(std::int64_t rows, const F& body) {
#pragma omp parallel for schedule(static)
  for (std::int64_t piece = 0; piece < pieces(rows, kRows); ++piece) {
    for (std::int64_t r = piece * kRows; r < std::min(rows, (piece + 1) * kRows); ++r) body(r);
  }
}

}  // namespace

void register_columns(Registry& registry) {
  registry.add<AddColumns>([](const AddColumns& op, const Request& q) {
    const RowKernels& k = row_kernels(q.outputs[0].dtype);
    const auto size = static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    const std::int64_t rows = q.outputs[0].shape[0], row_bytes = q.outputs[0].shape[1] * size;
    const std::int64_t count = q.inputs[1]->shape[1];
    return [&k, rows, row_bytes, count, size, at = op.first * size](const KernelArguments& a) {
      for_rows(rows, [&](std::int64_t r) {
        const std::byte* from = a.inputs[0] + r * row_bytes;
        std::byte* to = a.outputs[0] + r * row_bytes;
        if (from != to) std::memcpy(to, from, static_cast<std::size_t>(row_bytes));
        k.add(to + at, a.inputs[1] + r * count * size, to + at, count);
      });
    };
  });
  registry.add<SliceColumns>([](const SliceColumns& op, const Request& q) {
    const auto size = static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
    const std::int64_t rows = q.outputs[0].shape[0], row_bytes = q.inputs[0]->shape[1] * size;
    return [rows, row_bytes, bytes = op.count * size, at = op.first * size](const KernelArguments& a) {
      for_rows(rows, [&](std::int64_t r) {
        std::memcpy(a.outputs[0] + r * bytes, a.inputs[0] + r * row_bytes + at, static_cast<std::size_t>(bytes));
      });
    };
  });
}

}  // namespace convoy::cpu
