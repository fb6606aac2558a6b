// Attention: cuDNN's where every document is a whole row, Convoy's own kernels elsewhere.
#include "cuda/cudnn_attention.h"
#include "cuda/flash_attention.h"
#include "cuda/registry.h"
#include "graph/ops/attention.h"

namespace convoy::cuda {
namespace {

FlashShape flash_shape(const AttentionShape& s, const TensorSpec& qkv) {
  return {qkv.dtype,
          qkv.shape[0],
          static_cast<int>(s.heads),
          static_cast<int>(s.kv_heads),
          static_cast<int>(s.head_dim),
          s.causal,
          s.window,
          static_cast<float>(s.scale),
          s.dropout,
          s.seed,
          s.use};
}

// Null where the rows are not known to be of one length, or cuDNN does not do it.
std::shared_ptr<CudnnAttention> whole_rows(Context& c, const AttentionShape& s, const TensorSpec& qkv, bool backward) {
  if (s.row_tokens <= 0 || qkv.shape[0] % s.row_tokens != 0) return nullptr;
  return CudnnAttention::make(c, s, qkv.dtype, qkv.shape[0] / s.row_tokens, s.row_tokens, backward);
}

std::size_t workspace(Context& c, const AttentionShape& s, const TensorSpec& qkv, bool backward) {
  const auto dense = whole_rows(c, s, qkv, backward);
  return std::max(flash_workspace(flash_shape(s, qkv), backward), dense ? dense->workspace_bytes() : 0);
}

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
        return [&c, dense = whole_rows(c, op.shape, *q.inputs[0], false),
                shape = flash_shape(op.shape, *q.inputs[0])](const KernelArguments& a) {
          auto* lse = reinterpret_cast<float*>(a.outputs[1]);
          if (dense && c.whole_rows) return dense->forward(a.inputs[0], a.outputs[0], lse, a.workspace);
          flash_forward(c.stream, shape, a.inputs[0], ints(a.inputs[1]), longs(a, 2), a.outputs[0], lse, a.workspace);
        };
      },
      [&c](const Attention& op, const KernelRequest& q) { return workspace(c, op.shape, *q.inputs[0], false); });
  registry.add<AttentionGrad>(
      [&c](const AttentionGrad& op, const KernelRequest& q) {
        // The two passes must take the same kernels: they share the log-sum-exp.
        auto dense = whole_rows(c, op.shape, *q.inputs[1], true);
        return [&c, dense = std::move(dense), shape = flash_shape(op.shape, *q.inputs[1])](const KernelArguments& a) {
          const auto* lse = reinterpret_cast<const float*>(a.inputs[3]);
          if (dense && c.whole_rows)
            return dense->backward(a.inputs[0], a.inputs[1], a.inputs[2], lse, a.outputs[0], a.workspace);
          flash_backward(c.stream, shape, a.inputs[0], a.inputs[1], a.inputs[2], lse, ints(a.inputs[4]), longs(a, 5),
                         a.outputs[0], a.workspace);
        };
      },
      [&c](const AttentionGrad& op, const KernelRequest& q) { return workspace(c, op.shape, *q.inputs[1], true); });
}

}  // namespace convoy::cuda
