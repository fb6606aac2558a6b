// Table look-ups and their gradients. A gradient row is owned by one task, which adds its tokens in their order.
#include <algorithm>
#include <cstring>

#include "cpu/registry.h"
#include "cpu/row_kernels.h"
#include "graph/ops/embedding.h"

namespace convoy::cpu {
namespace {

// Sorts the tokens by id, in order of tokens within an id. `first` [rows + 1] and `order` [tokens] receive the result.
void group_by_id(const std::int32_t* ids, std::int64_t tokens, std::int64_t rows, std::int32_t* first,
                 std::int32_t* order) {
  std::fill_n(first, rows + 1, 0);
  for (std::int64_t t = 0; t < tokens; ++t) ++first[ids[t] + 1];
  for (std::int64_t r = 0; r < rows; ++r) first[r + 1] += first[r];
  for (std::int64_t t = 0; t < tokens; ++t) order[first[ids[t]]++] = static_cast<std::int32_t>(t);
  for (std::int64_t r = rows; r > 0; --r) first[r] = first[r - 1];
  first[0] = 0;
}

}  // namespace

void register_embedding(Registry& registry) {
  registry.add<Embedding>([](const Embedding&, const Request& q) {
    const DType dtype = q.outputs[0].dtype;
    const RowKernels& k = row_kernels(dtype);
    const std::int64_t tokens = q.outputs[0].shape[0], width = q.outputs[0].shape[1];
    const auto row_bytes = width * static_cast<std::int64_t>(size_of(dtype));
    return [&k, tokens, width, row_bytes, positions = q.has(3)](const KernelArguments& a) {
      const auto* ids = reinterpret_cast<const std::int32_t*>(a.inputs[0]);
      const auto* at = positions ? reinterpret_cast<const std::int32_t*>(a.inputs[2]) : nullptr;
#pragma omp parallel for schedule(static)
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::byte* row = a.inputs[1] + ids[t] * row_bytes;
        if (positions) {
          k.add(row, a.inputs[3] + at[t] * row_bytes, a.outputs[0] + t * row_bytes, width);
        } else {
          std::memcpy(a.outputs[0] + t * row_bytes, row, static_cast<std::size_t>(row_bytes));
        }
      }
    };
  });
  registry.add<EmbeddingGrad>(
      [](const EmbeddingGrad& op, const Request& q) {
        const DType dtype = q.inputs[0]->dtype;
        const RowKernels& k = row_kernels(dtype);
        const std::int64_t tokens = q.inputs[0]->shape[0], width = q.inputs[0]->shape[1];
        const auto row_bytes = width * static_cast<std::int64_t>(size_of(dtype));
        const auto sum_bytes = width * static_cast<std::int64_t>(size_of(q.outputs[0].dtype));
        return [&k, op, tokens, width, row_bytes, sum_bytes, accumulate = q.has(2)](const KernelArguments& a) {
          auto* first = reinterpret_cast<std::int32_t*>(a.workspace);
          auto* order = first + op.rows + 1;
          group_by_id(reinterpret_cast<const std::int32_t*>(a.inputs[1]), tokens, op.rows, first, order);
#pragma omp parallel for schedule(dynamic, 64)
          for (std::int64_t r = 0; r < op.rows; ++r) {
            std::byte* sum = a.outputs[0] + r * sum_bytes;
            if (!accumulate) std::memset(sum, 0, static_cast<std::size_t>(sum_bytes));
            if (r == op.pad_id) continue;
            for (std::int32_t i = first[r]; i < first[r + 1]; ++i)
              k.accumulate(a.inputs[0] + order[i] * row_bytes, sum, width);
          }
        };
      },
      [](const EmbeddingGrad& op, const Request& q) {
        return static_cast<std::size_t>(op.rows + 1 + q.inputs[0]->shape[0]) * sizeof(std::int32_t);
      });
}

}  // namespace convoy::cpu
