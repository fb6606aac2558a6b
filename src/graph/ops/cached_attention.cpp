#include "graph/ops/cached_attention.h"

#include "base/error.h"

namespace convoy {

std::vector<TensorSpec> KeepKeysValues::infer(Specs in) const {
  check(in[0]->shape.rank() == 2 && in[0]->shape[1] == (heads + 2 * kv_heads) * head_dim,
        "keep_keys_values: the packed rows do not fit the heads");
  check(in[1]->shape == Shape({in[0]->shape[0]}), "keep_keys_values: the row numbers do not fit the rows");
  for (int i : {2, 3}) {
    check(in[i]->dtype == in[0]->dtype && in[i]->shape.rank() == 2 && in[i]->shape[1] == kv_heads * head_dim,
          "keep_keys_values: the cache does not fit the heads");
  }
  return {*in[2], *in[3]};
}

Cost KeepKeysValues::cost(Specs in, std::span<const TensorSpec> /*out*/) const {
  return {0, 2 * static_cast<double>(in[0]->bytes())};
}

std::vector<TensorSpec> CachedAttention::infer(Specs in) const {
  const TensorSpec& x = *in[0];
  check(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
        "cached_attention: the query heads do not divide over the key heads");
  check(x.shape.rank() == 2 && x.shape[1] == (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
        "cached_attention: the packed rows do not fit the heads");
  check(in[1]->shape == in[2]->shape && in[1]->shape[1] == shape.kv_heads * shape.head_dim,
        "cached_attention: the cache does not fit the heads");
  check(in[3]->shape == Shape({x.shape[0]}) && in[4]->shape == in[3]->shape,
        "cached_attention: the ranges do not fit the rows");
  return {{x.dtype, {x.shape[0], shape.heads * shape.head_dim}}};
}

Cost CachedAttention::cost(Specs in, std::span<const TensorSpec> out) const {
  const auto rows = static_cast<double>(in[1]->shape[0]);
  return {4 * rows * static_cast<double>(shape.heads * shape.head_dim), traffic(in, out)};
}

}  // namespace convoy
