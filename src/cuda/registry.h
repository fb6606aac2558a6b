// Which kernel runs which operation on a CUDA device. Each ops_* file registers its own.
#pragma once

#include "cuda/context.h"
#include "runtime/kernel_registry.h"

namespace convoy::cuda {

void register_elementwise(KernelRegistry& registry, Context& context);
void register_rotary(KernelRegistry& registry, Context& context);
void register_norms(KernelRegistry& registry, Context& context);
void register_qk_norm(KernelRegistry& registry, Context& context);
void register_embedding(KernelRegistry& registry, Context& context);
void register_linear(KernelRegistry& registry, Context& context);
void register_attention(KernelRegistry& registry, Context& context);
void register_cross_attention(KernelRegistry& registry, Context& context);
void register_cached_attention(KernelRegistry& registry, Context& context);
void register_frames(KernelRegistry& registry, Context& context);
void register_classes(KernelRegistry& registry, Context& context);
void register_head(KernelRegistry& registry, Context& context);
void register_gradient_sums(KernelRegistry& registry, Context& context);
void register_update(KernelRegistry& registry, Context& context);
void register_compress(KernelRegistry& registry, Context& context);
void register_columns(KernelRegistry& registry, Context& context);
void register_fp8_codes(KernelRegistry& registry, Context& context);
void register_fp8_products(KernelRegistry& registry, Context& context);

}  // namespace convoy::cuda
