// Which kernel runs which operation on the CPU. Each ops_*.cpp file registers its own.
#pragma once

#include "runtime/kernel_registry.h"

namespace convoy::cpu {

using Registry = KernelRegistry;
using Request = KernelRequest;

void register_elementwise(Registry& registry);
void register_norms(Registry& registry);
void register_embedding(Registry& registry);
void register_linear(Registry& registry);
void register_attention(Registry& registry);
void register_cross_attention(Registry& registry);
void register_frames(Registry& registry);
void register_cached_attention(Registry& registry);
void register_head(Registry& registry);
void register_classes(Registry& registry);
void register_update(Registry& registry);
void register_compress(Registry& registry);
void register_columns(Registry& registry);
void register_fp8(Registry& registry);

// Fixed cuts of work: functions of the shape alone, so that results do not depend on the number of threads.
inline std::int64_t pieces(std::int64_t total, std::int64_t size) {
  return (total + size - 1) / size;
}

}  // namespace convoy::cpu
