// RMSNorm over the query and key heads of packed rows: a warp takes a head.
#include "cuda/column_sums.h"
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/norm.h"

namespace convoy::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kPerLane = 16;  // head sizes of up to 512
constexpr std::int64_t kGradBlocks = 1056;

struct Heads {
  std::int64_t rows, width;
  int query, key, dim;
};

template <typename T>
__global__ void qk_norm_kernel(const T* qkv, const T* q_weight, const T* k_weight, T* y, float* q_rstd, float* k_rstd,
                               Heads s, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % 32, heads = s.query + 2 * s.key;
  const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const std::int64_t row = unit / heads;
  const int head = static_cast<int>(unit % heads);
  if (row >= s.rows) return;
  const T* x = qkv + row * s.width + head * s.dim;
  T* to = y + row * s.width + head * s.dim;
  if (head >= s.query + s.key) {  // values pass
    for (int i = lane; i < s.dim; i += 32) to[i] = x[i];
    return;
  }
  float squares = 0;
  for (int i = lane; i < s.dim; i += 32) squares += widen(x[i]) * widen(x[i]);
  const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(s.dim) + eps);
  const bool query = head < s.query;
  const T* weight = query ? q_weight : k_weight;
  if (lane == 0) (query ? q_rstd[row * s.query + head] : k_rstd[row * s.key + head - s.query]) = rstd;
  for (int i = lane; i < s.dim; i += 32) to[i] = narrow<T>(widen(x[i]) * rstd * widen(weight[i]));
}

// A warp takes rows warp, warp + warps, … of the grid; its sums over them lie in registers until the end.
template <typename T>
__global__ void qk_norm_grad_kernel(const T* dy, const T* qkv, const T* q_weight, const T* k_weight,
                                    const float* q_rstd, const float* k_rstd, T* dx, float* partial, Heads s) {
  __shared__ float shared[kWarps][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float sums[2][kPerLane] = {};
  const auto one = [&](std::int64_t row, int head, bool query, float(&sum)[kPerLane]) {
    const std::int64_t at = row * s.width + head * s.dim;
    const T* weight = query ? q_weight : k_weight;
    const float rstd = query ? q_rstd[row * s.query + head] : k_rstd[row * s.key + head - s.query];
    float dot = 0;
    for (int i = lane; i < s.dim; i += 32) dot += widen(dy[at + i]) * widen(weight[i]) * widen(qkv[at + i]) * rstd;
    dot = warp_sum(dot) / static_cast<float>(s.dim);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int i = j * 32 + lane;
      if (i >= s.dim) break;
      const float normal = widen(qkv[at + i]) * rstd, gradient = widen(dy[at + i]);
      dx[at + i] = narrow<T>(rstd * (gradient * widen(weight[i]) - normal * dot));
      sum[j] += gradient * normal;
    }
  };
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; row < s.rows;
       row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    for (int head = 0; head < s.query; ++head) one(row, head, true, sums[0]);
    for (int head = s.query; head < s.query + s.key; ++head) one(row, head, false, sums[1]);
    const std::int64_t values = row * s.width + (s.query + s.key) * s.dim;
    for (int i = lane; i < s.key * s.dim; i += 32) dx[values + i] = dy[values + i];
  }
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (j * 32 >= s.dim) break;
      shared[warp][lane] = sums[part][j];
      __syncthreads();
      if (warp == 0 && j * 32 + lane < s.dim) {
        float total = 0;
        for (int w = 0; w < kWarps; ++w) total += shared[w][lane];
        partial[(static_cast<std::int64_t>(blockIdx.x) * 2 + part) * s.dim + j * 32 + lane] = total;
      }
      __syncthreads();
    }
  }
}

std::int64_t grad_blocks(std::int64_t rows) {
  return std::min(ceil_div(rows, kWarps), kGradBlocks);
}

template <typename O>
Heads heads_of(const O& op, const TensorSpec& rows) {
  check(op.head_dim <= 32 * kPerLane, "qk_norm: a head is larger than 512");
  return {rows.shape[0], rows.shape[1], static_cast<int>(op.heads), static_cast<int>(op.kv_heads),
          static_cast<int>(op.head_dim)};
}

}  // namespace

void register_qk_norm(KernelRegistry& registry, Context& c) {
  registry.add<QkNorm>([&c](const QkNorm& op, const KernelRequest& q) {
    return [&c, s = heads_of(op, q.outputs[0]), dtype = q.outputs[0].dtype,
            eps = static_cast<float>(op.eps)](const KernelArguments& a) {
      if (s.rows == 0) return;
      with_type(dtype, [&]<typename T>() {
        qk_norm_kernel<<<grid_of(s.rows * (s.query + 2 * s.key), kWarps), kWarps * 32, 0, c.stream>>>(
            reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const T*>(a.inputs[1]),
            reinterpret_cast<const T*>(a.inputs[2]), reinterpret_cast<T*>(a.outputs[0]),
            reinterpret_cast<float*>(a.outputs[1]), reinterpret_cast<float*>(a.outputs[2]), s, eps);
      });
      check_launch("qk_norm");
    };
  });
  registry.add<QkNormGrad>(
      [&c](const QkNormGrad& op, const KernelRequest& q) {
        return [&c, s = heads_of(op, q.outputs[0]), dtype = q.outputs[0].dtype, add_q = q.has(6), add_k = q.has(7),
                dweight = op.dweight](const KernelArguments& a) {
          auto* partial = reinterpret_cast<float*>(a.workspace);
          const std::int64_t blocks = grad_blocks(s.rows);
          with_type(dtype, [&]<typename T>() {
            qk_norm_grad_kernel<<<static_cast<unsigned>(blocks), kWarps * 32, 0, c.stream>>>(
                reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const T*>(a.inputs[1]),
                reinterpret_cast<const T*>(a.inputs[2]), reinterpret_cast<const T*>(a.inputs[3]),
                reinterpret_cast<const float*>(a.inputs[4]), reinterpret_cast<const float*>(a.inputs[5]),
                reinterpret_cast<T*>(a.outputs[0]), partial, s);
          });
          check_launch("qk_norm_grad");
          if (!dweight) return;
          sum_partials(partial, blocks,
                       {{reinterpret_cast<float*>(a.outputs[1]), s.dim, add_q},
                        {reinterpret_cast<float*>(a.outputs[2]), s.dim, add_k}},
                       c.stream);
        };
      },
      [](const QkNormGrad& op, const KernelRequest& q) {
        return static_cast<std::size_t>(grad_blocks(q.outputs[0].shape[0]) * 2 * op.head_dim) * sizeof(float);
      });
}

}  // namespace convoy::cuda
