#include "models/graph_inputs.h"

#include <fmt/format.h>

#include "graph/ops/cached_attention.h"
#include "graph/ops/cross_attention.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/embedding.h"
#include "graph/ops/linear.h"

namespace convoy {

GraphInputs::GraphInputs(const Model& model, const GraphOptions& options) : options_(options) {
  for (const Parameter& parameter : model.parameters()) {
    made_.weights.push_back(made_.graph.add_source(Role::kWeight, parameter.name, {options.dtype, parameter.shape}));
  }
}

ValueId GraphInputs::source(const char* name, const TensorSpec& spec) {
  const ValueId known = made_.graph.find(Role::kBatch, name);
  return known != kNoValue ? known : made_.graph.add_source(Role::kBatch, name, spec);
}

ValueId GraphInputs::linear(ValueId x, std::size_t& p, bool bias, const std::string& name, bool transposed) {
  const ValueId w = weight(p++);
  const ValueId b = bias ? weight(p++) : kNoValue;
  return made_.graph.add_op(Linear{transposed}, {x, w, b}, {name})[0];
}

ValueId GraphInputs::attention(AttentionShape shape, ValueId qkv, double dropout_probability) {
  const bool drops = options_.kind == GraphKind::kTrain && dropout_probability > 0;
  if (shape.causal && options_.cache.use != CacheUse::kNone) return cached_attention(shape, qkv);
  if (options_.table_length > 0 && options_.tokens % options_.table_length == 0)
    shape.row_tokens = options_.table_length;
  if (drops) {
    shape.dropout = static_cast<float>(dropout_probability);
    shape.seed = options_.seed;
    shape.use = uses_++;
  }
  return made_.graph.add_op(Attention{shape}, {qkv, seq_start(), drops ? token_keys() : kNoValue},
                            {"attention", "lse"})[0];
}

GraphInputs::Kept GraphInputs::cache_part(const std::string& prefix, int part, std::int64_t rows,
                                          const AttentionShape& shape) {
  const TensorSpec spec{options_.dtype, {rows, shape.kv_heads * shape.head_dim}};
  const auto source = [&](const char* what) {
    return made_.graph.add_source(Role::kCache, fmt::format("{}{}.{}", prefix, what, part), spec);
  };
  const ValueId keys = source("keys");
  return {keys, source("values")};
}

GraphInputs::Kept GraphInputs::keep(const Kept& cache, ValueId x, ValueId row, std::int64_t query_heads,
                                    const AttentionShape& shape) {
  Graph& g = made_.graph;
  const std::vector<ValueId> kept =
      g.add_op(KeepKeysValues{query_heads, shape.kv_heads, shape.head_dim}, {x, row, cache.keys, cache.values},
               {g.value(cache.keys).name, g.value(cache.values).name});
  for (ValueId id : kept) {
    g.value(id).role = Role::kCache;
    caches_.push_back(id);
  }
  return {kept[0], kept[1]};
}

ValueId GraphInputs::cached_attention(const AttentionShape& shape, ValueId qkv) {
  const Kept before = cache_part("", cached_layers_++, options_.cache.rows, shape);
  const Kept kept = keep(before, qkv, per_token(batch_input::kCacheRow, DType::kI32), shape.heads, shape);
  if (options_.cache.use == CacheUse::kFill)
    return made_.graph.add_op(Attention{shape}, {qkv, seq_start(), kNoValue}, {"attention", "lse"})[0];
  return made_.graph.add_op(CachedAttention{shape},
                            {qkv, kept.keys, kept.values, per_token(batch_input::kCacheBegin, DType::kI32),
                             per_token(batch_input::kCacheEnd, DType::kI32)},
                            {"attention"})[0];
}

ValueId GraphInputs::cross_attention(const AttentionShape& shape, ValueId q, const std::function<ValueId()>& heard) {
  Graph& g = made_.graph;
  const int layer = heard_layers_++;
  if (options_.cache.use == CacheUse::kNone)
    return g.add_op(CrossAttention{shape}, {q, heard(), key_begin(), key_end()}, {"heard", "lse"})[0];
  const Kept cache = cache_part("heard_", layer, options_.cache.heard_rows, shape);
  if (options_.cache.use == CacheUse::kExtend)
    return g.add_op(CachedAttention{shape}, {q, cache.keys, cache.values, key_begin(), key_end()}, {"heard"})[0];
  const ValueId kv = heard();
  keep(cache, kv, per_frame(batch_input::kHeardRow), 0, shape);
  return g.add_op(CrossAttention{shape}, {q, kv, key_begin(), key_end()}, {"heard", "lse"})[0];
}

ValueId GraphInputs::dropout(ValueId x, double p) {
  if (options_.kind != GraphKind::kTrain || p <= 0) return x;
  return made_.graph.add_op(Dropout{static_cast<float>(p), options_.seed, uses_++}, {x, token_keys()}, {"dropped"})[0];
}

ModelGraph GraphInputs::finish(ValueId hidden, ValueId head) {
  Graph& g = made_.graph;
  made_.hidden = hidden;
  if (options_.kind == GraphKind::kLogits) {
    const ValueId rows = source(batch_input::kRows, {DType::kI32, {options_.logit_rows}});
    const ValueId chosen = g.add_op(Embedding{}, {rows, hidden}, {"chosen_rows"})[0];
    made_.result = g.add_op(Linear{}, {chosen, head}, {"logits"})[0];
  } else {
    const ValueId targets = per_token(batch_input::kTargets, DType::kI32);
    made_.result = g.add_op(LinearCrossEntropy{options_.loss}, {hidden, head, targets}, {"statistics"})[0];
  }
  g.outputs = {made_.result};
  g.outputs.insert(g.outputs.end(), caches_.begin(), caches_.end());
  return std::move(made_);
}

}  // namespace convoy
