// The only door to oneDNN's matrix product.
#pragma once

#include <memory>

#include "cpu/gemm_tile.h"

namespace convoy::cpu {

bool onednn_has_bf16();
// Null where oneDNN has no implementation of this product. Its "brgemm" ones work in the given scratch alone; the
// others, taken only if `any`, allocate packing buffers of their own in every call.
std::shared_ptr<TileProduct> prepare_onednn_tile(const TileSpec& spec, bool any);

}  // namespace convoy::cpu
