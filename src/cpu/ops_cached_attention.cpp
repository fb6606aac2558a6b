// Attention over kept keys and values, and keeping them.
#include <cstring>

#include "cpu/cached_attention_kernels.h"
#include "cpu/isa.h"
#include "cpu/registry.h"
#include "graph/ops/cached_attention.h"

namespace convoy::cpu {
namespace {

const CachedAttentionKernels& kernels() {
#if defined(__x86_64__)
  return pick(&base::cached_attention_kernels, &avx2::cached_attention_kernels, &avx512::cached_attention_kernels)();
#else
  return base::cached_attention_kernels();
#endif
}

constexpr std::int64_t kMostHeadDim = 256;

void register_keep(Registry& registry) {
  registry.add<KeepKeysValues>([](const KeepKeysValues& op, const Request& q) {
    const std::int64_t tokens = q.inputs[0]->shape[0], rows = q.inputs[2]->shape[0];
    const std::size_t size = size_of(q.inputs[0]->dtype);
    const std::size_t width = static_cast<std::size_t>(op.kv_heads * op.head_dim) * size;
    const std::size_t first = static_cast<std::size_t>(op.heads * op.head_dim) * size;
    return [tokens, rows, width, first](const KernelArguments& a) {
      const auto* row = reinterpret_cast<const std::int32_t*>(a.inputs[1]);
      for (std::int64_t t = 0; t < tokens; ++t) {
        if (row[t] < 0) continue;
        check(row[t] < rows, "keep_keys_values: a row outside of the cache");
        const std::byte* keys = a.inputs[0] + static_cast<std::size_t>(t) * (first + 2 * width) + first;
        std::memcpy(a.outputs[0] + static_cast<std::size_t>(row[t]) * width, keys, width);
        std::memcpy(a.outputs[1] + static_cast<std::size_t>(row[t]) * width, keys + width, width);
      }
    };
  });
}

}  // namespace

void register_cached_attention(Registry& registry) {
  register_keep(registry);
  registry.add<CachedAttention>([](const CachedAttention& op, const Request& q) {
    check(op.shape.head_dim <= kMostHeadDim, "cached_attention: the head size must be at most 256");
    CachedAttentionJob job{};
    job.dtype = static_cast<int>(q.inputs[0]->dtype);
    job.heads = op.shape.heads;
    job.kv_heads = op.shape.kv_heads;
    job.dim = op.shape.head_dim;
    job.window = op.shape.window;
    job.scale = op.shape.scale;
    const std::int64_t tokens = q.inputs[0]->shape[0], rows = q.inputs[1]->shape[0];
    return [job, tokens, rows](const KernelArguments& a) {
      CachedAttentionJob now = job;
      now.qkv = a.inputs[0];
      now.keys = a.inputs[1];
      now.values = a.inputs[2];
      now.begin = reinterpret_cast<const std::int32_t*>(a.inputs[3]);
      now.end = reinterpret_cast<const std::int32_t*>(a.inputs[4]);
      now.out = a.outputs[0];
      for (std::int64_t t = 0; t < tokens; ++t)
        check(now.begin[t] >= 0 && now.begin[t] <= now.end[t] && now.end[t] <= rows,
              "cached_attention: a range of rows leaves the cache");
      const CachedAttentionKernels& k = kernels();
      const std::int64_t tasks = tokens * job.kv_heads;
#pragma omp parallel for schedule(static)
      for (std::int64_t i = 0; i < tasks; ++i) k.run(now, i / job.kv_heads, i % job.kv_heads);
    };
  });
}

}  // namespace convoy::cpu
