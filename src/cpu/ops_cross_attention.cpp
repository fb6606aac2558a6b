// Attention over another sequence's keys and values.
#include "cpu/attention.h"
#include "cpu/registry.h"
#include "graph/ops/cross_attention.h"

namespace convoy::cpu {
namespace {

AttentionSpec spec_of(const AttentionShape& shape, const TensorSpec& q, const TensorSpec& kv) {
  AttentionSpec spec;
  spec.dtype = q.dtype;
  spec.tokens = q.shape[0];
  spec.keys = kv.shape[0];
  spec.heads = shape.heads;
  spec.kv_heads = shape.kv_heads;
  spec.head_dim = shape.head_dim;
  spec.q_stride = q.shape[1];
  spec.k_stride = spec.v_stride = kv.shape[1];
  spec.mask = AttentionMask::kRanges;
  spec.scale = shape.scale;
  spec.dropout = static_cast<double>(shape.dropout);
  spec.use = shape.use;
  return spec;
}

// Bytes from a row's first key to its first value, or from a row's key gradient to its value gradient.
std::size_t value_offset(const AttentionShape& shape, DType dtype) {
  return static_cast<std::size_t>(shape.kv_heads * shape.head_dim) * size_of(dtype);
}

AttentionInput input_of(const AttentionShape& shape, std::size_t values, const std::byte* q, const std::byte* kv,
                        const std::byte* begin, const std::byte* end, const std::byte* token_keys) {
  AttentionInput input;
  input.q = q;
  input.k = kv;
  input.v = kv + values;
  input.key_begin = reinterpret_cast<const std::int32_t*>(begin);
  input.key_end = reinterpret_cast<const std::int32_t*>(end);
  input.token_keys = reinterpret_cast<const std::int64_t*>(token_keys);
  input.seed = shape.seed;
  return input;
}

}  // namespace

void register_cross_attention(Registry& registry) {
  registry.add<CrossAttention>(
      [](const CrossAttention& op, const Request& q) {
        return [attention = Attention(spec_of(op.shape, *q.inputs[0], *q.inputs[1])), shape = op.shape,
                values = value_offset(op.shape, q.inputs[0]->dtype)](const KernelArguments& a) {
          const std::byte* keys = a.inputs.size() > 4 ? a.inputs[4] : nullptr;
          attention.forward(input_of(shape, values, a.inputs[0], a.inputs[1], a.inputs[2], a.inputs[3], keys),
                            a.outputs[0], a.outputs[1], a.workspace);
        };
      },
      [](const CrossAttention& op, const Request& q) {
        return Attention(spec_of(op.shape, *q.inputs[0], *q.inputs[1])).forward_workspace_bytes();
      });
  registry.add<CrossAttentionGrad>(
      [](const CrossAttentionGrad& op, const Request& q) {
        return [attention = Attention(spec_of(op.shape, *q.inputs[1], *q.inputs[2])), shape = op.shape,
                values = value_offset(op.shape, q.inputs[1]->dtype)](const KernelArguments& a) {
          const std::byte* keys = a.inputs.size() > 7 ? a.inputs[7] : nullptr;
          attention.backward(input_of(shape, values, a.inputs[1], a.inputs[2], a.inputs[5], a.inputs[6], keys),
                             a.inputs[3], a.inputs[4], a.inputs[0], a.outputs[0], a.outputs[1], a.outputs[1] + values,
                             a.workspace);
        };
      },
      [](const CrossAttentionGrad& op, const Request& q) {
        return Attention(spec_of(op.shape, *q.inputs[1], *q.inputs[2])).backward_workspace_bytes();
      });
}

}  // namespace convoy::cpu
