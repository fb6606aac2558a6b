// Attention over another sequence: cuDNN's where every row of tokens sees one row of keys, Convoy's own kernels
// elsewhere.
#include "cuda/cudnn_attention.h"
#include "cuda/flash_attention.h"
#include "cuda/registry.h"
#include "graph/ops/cross_attention.h"

namespace convoy::cuda {
namespace {

FlashShape flash_shape(const AttentionShape& s, const TensorSpec& q, const TensorSpec& kv) {
  FlashShape shape;
  shape.dtype = q.dtype;
  shape.tokens = q.shape[0];
  shape.keys = kv.shape[0];
  shape.heads = static_cast<int>(s.heads);
  shape.kv_heads = static_cast<int>(s.kv_heads);
  shape.head_dim = static_cast<int>(s.head_dim);
  shape.causal = false;
  shape.scale = static_cast<float>(s.scale);
  shape.dropout = s.dropout;
  shape.seed = s.seed;
  shape.use = s.use;
  return shape;
}

// Null where the ranges are not known to be whole rows, or cuDNN does not do it.
std::shared_ptr<CudnnAttention> dense_rows(Context& c, const AttentionShape& shape, const TensorSpec& q,
                                           const TensorSpec& kv, bool backward) {
  const std::int64_t keys = shape.row_tokens;
  if (!shape.whole_rows || keys <= 0 || kv.shape[0] == 0 || kv.shape[0] % keys != 0) return nullptr;
  const std::int64_t rows = kv.shape[0] / keys;
  if (q.shape[0] % rows != 0) return nullptr;
  AttentionShape s = shape;  // of which the mask does not count
  s.causal = false;
  s.window = 0;
  return CudnnAttention::make_pass(c, s, q.dtype, {rows, q.shape[0] / rows, keys, q.shape[1], kv.shape[1]}, backward);
}

std::size_t workspace(Context& c, const AttentionShape& s, const TensorSpec& q, const TensorSpec& kv, bool backward) {
  const auto dense = dense_rows(c, s, q, kv, backward);
  return dense ? dense->workspace_bytes() : flash_workspace(flash_shape(s, q, kv), backward);
}

const std::int32_t* ints(const std::byte* at) {
  return reinterpret_cast<const std::int32_t*>(at);
}
const std::int64_t* longs(const KernelArguments& a, std::size_t i) {
  return a.inputs.size() > i ? reinterpret_cast<const std::int64_t*>(a.inputs[i]) : nullptr;
}

// Bytes from a row's first key to its first value.
std::size_t values_of(const AttentionShape& s, DType dtype) {
  return static_cast<std::size_t>(s.kv_heads * s.head_dim) * size_of(dtype);
}

}  // namespace

void register_cross_attention(KernelRegistry& registry, Context& c) {
  registry.add<CrossAttention>(
      [&c](const CrossAttention& op, const KernelRequest& q) {
        return [&c, dense = dense_rows(c, op.shape, *q.inputs[0], *q.inputs[1], false),
                values = values_of(op.shape, q.inputs[0]->dtype),
                shape = flash_shape(op.shape, *q.inputs[0], *q.inputs[1])](const KernelArguments& a) {
          auto* lse = reinterpret_cast<float*>(a.outputs[1]);
          if (dense)
            return dense->forward(a.inputs[0], a.inputs[1], a.inputs[1] + values, a.outputs[0], lse, a.workspace);
          flash_cross_forward(c.stream, shape, a.inputs[0], a.inputs[1], ints(a.inputs[2]), ints(a.inputs[3]),
                              longs(a, 4), a.outputs[0], lse, a.workspace);
        };
      },
      [&c](const CrossAttention& op, const KernelRequest& q) {
        return workspace(c, op.shape, *q.inputs[0], *q.inputs[1], false);
      });
  registry.add<CrossAttentionGrad>(
      [&c](const CrossAttentionGrad& op, const KernelRequest& q) {
        return [&c, dense = dense_rows(c, op.shape, *q.inputs[1], *q.inputs[2], true),
                values = values_of(op.shape, q.inputs[1]->dtype),
                shape = flash_shape(op.shape, *q.inputs[1], *q.inputs[2])](const KernelArguments& a) {
          const auto* lse = reinterpret_cast<const float*>(a.inputs[4]);
          if (dense) {
            return dense->backward(a.inputs[0], a.inputs[1], a.inputs[2], a.inputs[2] + values, a.inputs[3], lse,
                                   a.outputs[0], a.outputs[1], a.outputs[1] + values, a.workspace);
          }
          flash_cross_backward(c.stream, shape, a.inputs[0], a.inputs[1], a.inputs[2], a.inputs[3], lse,
                               ints(a.inputs[5]), ints(a.inputs[6]), longs(a, 7), a.outputs[0], a.outputs[1],
                               a.workspace);
        };
      },
      [&c](const CrossAttentionGrad& op, const KernelRequest& q) {
        return workspace(c, op.shape, *q.inputs[1], *q.inputs[2], true);
      });
}

}  // namespace convoy::cuda
