// Attention over packed rows.
#include "cpu/attention.h"
#include "cpu/registry.h"
#include "graph/ops/attention.h"

namespace convoy::cpu {
namespace {

AttentionSpec spec_of(const AttentionShape& shape, const TensorSpec& qkv) {
  AttentionSpec spec;
  spec.dtype = qkv.dtype;
  spec.tokens = qkv.shape[0];
  spec.heads = shape.heads;
  spec.kv_heads = shape.kv_heads;
  spec.head_dim = shape.head_dim;
  spec.mask = shape.causal ? AttentionMask::kCausal : AttentionMask::kDocument;
  spec.window = shape.window;
  spec.scale = shape.scale;
  spec.dropout = static_cast<double>(shape.dropout);
  spec.use = shape.use;
  return spec;
}

AttentionInput input_of(const Attention& attention, const AttentionShape& shape, const std::byte* qkv,
                        const std::byte* seq_start, const std::byte* token_keys) {
  AttentionInput input = attention.packed(qkv);
  input.seq_start = reinterpret_cast<const std::int32_t*>(seq_start);
  input.token_keys = reinterpret_cast<const std::int64_t*>(token_keys);
  input.seed = shape.seed;
  return input;
}

}  // namespace

void register_attention(Registry& registry) {
  registry.add<convoy::Attention>(
      [](const convoy::Attention& op, const Request& q) {
        return [attention = Attention(spec_of(op.shape, *q.inputs[0])), shape = op.shape](const KernelArguments& a) {
          const std::byte* keys = a.inputs.size() > 2 ? a.inputs[2] : nullptr;
          attention.forward(input_of(attention, shape, a.inputs[0], a.inputs[1], keys), a.outputs[0], a.outputs[1],
                            a.workspace);
        };
      },
      [](const convoy::Attention& op, const Request& q) {
        return Attention(spec_of(op.shape, *q.inputs[0])).forward_workspace_bytes();
      });
  registry.add<AttentionGrad>(
      [](const AttentionGrad& op, const Request& q) {
        return [attention = Attention(spec_of(op.shape, *q.inputs[1])), shape = op.shape,
                size = size_of(q.inputs[1]->dtype)](const KernelArguments& a) {
          const std::byte* keys = a.inputs.size() > 5 ? a.inputs[5] : nullptr;
          std::byte* dk = a.outputs[0] + static_cast<std::size_t>(shape.heads * shape.head_dim) * size;
          std::byte* dv = dk + static_cast<std::size_t>(shape.kv_heads * shape.head_dim) * size;
          attention.backward(input_of(attention, shape, a.inputs[1], a.inputs[4], keys), a.inputs[2], a.inputs[3],
                             a.inputs[0], a.outputs[0], dk, dv, a.workspace);
        };
      },
      [](const AttentionGrad& op, const Request& q) {
        return Attention(spec_of(op.shape, *q.inputs[1])).backward_workspace_bytes();
      });
}

}  // namespace convoy::cpu
