// Attention: cuDNN's where every document is a whole row, Convoy's own kernels elsewhere.
#include "cuda/cudnn_attention.h"
#include "cuda/flash_attention.h"
#include "cuda/registry.h"
#include "graph/ops/attention.h"

namespace convoy::cuda {
namespace {

FlashShape flash_shape(const AttentionShape& s, const TensorSpec& qkv) {
  FlashShape shape;
  shape.dtype = qkv.dtype;
  shape.tokens = qkv.shape[0];
  shape.heads = static_cast<int>(s.heads);
  shape.kv_heads = static_cast<int>(s.kv_heads);
  shape.head_dim = static_cast<int>(s.head_dim);
  shape.causal = s.causal;
  shape.window = s.window;
  shape.scale = static_cast<float>(s.scale);
  shape.dropout = s.dropout;
  shape.seed = s.seed;
  shape.use = s.use;
  return shape;
}

// Null where the rows are not known to be of one length, or cuDNN does not do it.
std::shared_ptr<CudnnAttention> dense_rows(Context& c, const AttentionShape& s, const TensorSpec& qkv, bool backward) {
  if (s.row_tokens <= 0 || qkv.shape[0] % s.row_tokens != 0) return nullptr;
  return CudnnAttention::make_pass(
      c, s, qkv.dtype, {qkv.shape[0] / s.row_tokens, s.row_tokens, s.row_tokens, qkv.shape[1], qkv.shape[1]}, backward);
}

std::size_t workspace(Context& c, const AttentionShape& s, const TensorSpec& qkv, bool backward) {
  const auto dense = dense_rows(c, s, qkv, backward);
  if (dense && s.whole_rows) return dense->workspace_bytes();
  return std::max(flash_workspace(flash_shape(s, qkv), backward), dense ? dense->workspace_bytes() : 0);
}

// Where the queries, keys and values of packed rows begin.
template <typename Byte>
struct Packed {
  Packed(Byte* base, const AttentionShape& s, std::size_t size)
      : q(base),
        k(q + static_cast<std::size_t>(s.heads * s.head_dim) * size),
        v(k + static_cast<std::size_t>(s.kv_heads * s.head_dim) * size) {}
  Byte *q, *k, *v;
};

const std::int32_t* ints(const std::byte* at) {
  return reinterpret_cast<const std::int32_t*>(at);
}
const std::int64_t* longs(const KernelArguments& a, std::size_t i) {
  return a.inputs.size() > i ? reinterpret_cast<const std::int64_t*>(a.inputs[i]) : nullptr;
}

}  // namespace

void register_attention(KernelRegistry& registry, Context& c) {
  registry.add<Attention>(
      [&c](const Attention& op, const KernelRequest& q) {
        return [&c, dense = dense_rows(c, op.shape, *q.inputs[0], false), s = op.shape,
                shape = flash_shape(op.shape, *q.inputs[0])](const KernelArguments& a) {
          auto* lse = reinterpret_cast<float*>(a.outputs[1]);
          if (dense && (s.whole_rows || c.whole_rows)) {
            const Packed<const std::byte> x(a.inputs[0], s, size_of(shape.dtype));
            return dense->forward(x.q, x.k, x.v, a.outputs[0], lse, a.workspace);
          }
          flash_forward(c.stream, shape, a.inputs[0], ints(a.inputs[1]), longs(a, 2), a.outputs[0], lse, a.workspace);
        };
      },
      [&c](const Attention& op, const KernelRequest& q) { return workspace(c, op.shape, *q.inputs[0], false); });
  registry.add<AttentionGrad>(
      [&c](const AttentionGrad& op, const KernelRequest& q) {
        auto dense = dense_rows(c, op.shape, *q.inputs[1], true);
        return [&c, dense = std::move(dense), s = op.shape,
                shape = flash_shape(op.shape, *q.inputs[1])](const KernelArguments& a) {
          const auto* lse = reinterpret_cast<const float*>(a.inputs[3]);
          if (dense && (s.whole_rows || c.whole_rows)) {
            const Packed<const std::byte> x(a.inputs[1], s, size_of(shape.dtype));
            const Packed<std::byte> d(a.outputs[0], s, size_of(shape.dtype));
            return dense->backward(a.inputs[0], x.q, x.k, x.v, a.inputs[2], lse, d.q, d.k, d.v, a.workspace);
          }
          flash_backward(c.stream, shape, a.inputs[0], a.inputs[1], a.inputs[2], lse, ints(a.inputs[4]), longs(a, 5),
                         a.outputs[0], a.workspace);
        };
      },
      [&c](const AttentionGrad& op, const KernelRequest& q) { return workspace(c, op.shape, *q.inputs[1], true); });
}

}  // namespace convoy::cuda
