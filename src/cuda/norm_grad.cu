// Gradients of normalisations. A group of threads, a warp where a row fits one and else a block, takes rows in turn;
// the next row comes into shared memory while one is worked on. Weight gradients are summed over the rows of a group,
// of a block's groups, then over the blocks in order.
#include "cuda/norm_grad.h"

#include <algorithm>

#include "cuda/async_copy.cuh"
#include "cuda/column_sums.h"
#include "cuda/numeric.cuh"

namespace convoy::cuda {
namespace {

// Functions of the shape alone: the order of sums must not depend on the card.
constexpr std::int64_t kWarpGroupBlocks = 396, kBlockGroupBlocks = 528;
constexpr int kWarps = 4;                        // of a block whose groups are warps
constexpr int kWarpPacks = 6;                    // a thread's packs of a row where groups are warps, at most
constexpr int kBlockPacks = 4, kLongPacks = 16;  // and where they are blocks

// The threads of a block, as the registers of P packs of N elements allow.
template <int N, int P>
constexpr int kMostThreads = N == 1 ? 1024 : (P <= kWarpPacks ? 512 : 256);

// How a row of `packs` packs of N elements is cut.
template <int N>
struct RowCut {
  bool warps = false;  // groups are warps
  int per_thread = 0, threads = 0;
  std::int64_t blocks = 0;
  RowCut(std::int64_t rows, std::int64_t packs) {
    warps = N > 1 && packs <= 32 * kWarpPacks;
    if (warps) {
      per_thread = static_cast<int>(std::max<std::int64_t>(1, ceil_div(packs, 32)));
      threads = 32 * kWarps;
      blocks = std::min(ceil_div(rows, kWarps), kWarpGroupBlocks);
      return;
    }
    per_thread = packs <= kBlockPacks * kMostThreads<N, kBlockPacks> ? kBlockPacks : kLongPacks;
    threads = static_cast<int>(ceil_div(ceil_div(packs, per_thread), 32) * 32);
    if (per_thread == kLongPacks && threads > kMostThreads<N, kLongPacks>)
      throw internal_error("a norm over rows that are too long for the CUDA device");
    blocks = std::min(rows, kBlockGroupBlocks);
  }
};

template <typename T>
constexpr int kWide = 16 / sizeof(T);
template <typename T>
bool is_wide(std::int64_t width) {
  return width % kWide<T> == 0;
}

// The sums of x and y over a group's threads in a fixed order, in all of them; kBoth: else of x alone. `shared` holds
// 66 floats of the block.
template <bool kWarpGroup, bool kBoth>
__device__ void group_sums(float& x, float& y, float* shared) {
  x = warp_sum(x);
  if (kBoth) y = warp_sum(y);
  if constexpr (!kWarpGroup) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int warps = static_cast<int>(blockDim.x) / 32;
    __syncthreads();  // the last row's sums have been read
    if (lane == 0) {
      shared[warp] = x;
      if (kBoth) shared[33 + warp] = y;
    }
    __syncthreads();
    x = warp_sum(lane < warps ? shared[lane] : 0.0f);
    if (kBoth) y = warp_sum(lane < warps ? shared[33 + lane] : 0.0f);
  }
}

template <typename T>
struct Rows {
  const T *dy, *r, *weight;
  const float *mean, *rstd;
  const T* plus;
  T* dr;
  float* partial;  // [blocks, width], for LayerNorm [blocks, 2 width]: sums of dy·x̂, then of dy
  std::int64_t rows, width;
};

// kAhead: rows pass through shared memory, two places of [3][kPacks][threads of a group] packs for each group.
template <bool kLayer, bool kWarpGroup, bool kAhead, typename T, int N, int P>
__global__ void __launch_bounds__(kWarpGroup ? 32 * kWarps : kMostThreads<N, P>) norm_grad_kernel(const Rows<T> a) {
  __shared__ float sums[kWarpGroup ? 1 : 66];
  const int lanes = kWarpGroup ? 32 : static_cast<int>(blockDim.x);
  const int lane = kWarpGroup ? static_cast<int>(threadIdx.x) % 32 : static_cast<int>(threadIdx.x);
  const int group = kWarpGroup ? static_cast<int>(threadIdx.x) / 32 : 0, groups = kWarpGroup ? kWarps : 1;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * groups + group;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * groups;
  const auto column_of = [&](int p) { return (static_cast<std::int64_t>(p) * lanes + lane) * N; };
  const bool adds = a.plus != nullptr;
  T* place = reinterpret_cast<T*>(shared_bytes()) + static_cast<std::int64_t>(group) * 2 * 3 * P * lanes * N;
  const auto slot = [&](int buffer, int what, int p) {
    return place + ((buffer * 3 + what) * P + p) * lanes * N + lane * N;
  };
  const auto fetch = [&](std::int64_t row, int buffer) {
    if (row < a.rows) {
#pragma unroll
      for (int p = 0; p < P; ++p) {
        const std::int64_t at = row * a.width + column_of(p);
        if (column_of(p) >= a.width) continue;
        copy_async<16>(shared_address(slot(buffer, 0, p)), a.dy + at, true);
        copy_async<16>(shared_address(slot(buffer, 1, p)), a.r + at, true);
        if (adds) copy_async<16>(shared_address(slot(buffer, 2, p)), a.plus + at, true);
      }
    }
    copy_commit();
  };
  float dweight[P][N] = {}, dbias[kLayer ? P : 1][N] = {};
  if constexpr (kAhead) fetch(first, 0);
  int buffer = 0;
  const auto per_row = static_cast<float>(a.width);
  for (std::int64_t row = first; row < a.rows; row += step, buffer ^= 1) {
    if constexpr (kAhead) {
      fetch(row + step, buffer ^ 1);
      copy_wait<1>();
    }
    const auto part = [&](const T* rows, int what, int p) {
      return kAhead ? load_pack<N>(static_cast<const T*>(slot(buffer, what, p)))
                    : load_pack<N>(rows + row * a.width + column_of(p));
    };
    const float scale = a.rstd[row], shift = kLayer ? a.mean[row] : 0.0f;
    float dot = 0, total = 0;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (column_of(p) >= a.width) continue;
      const auto d = part(a.dy, 0, p), v = part(a.r, 1, p), w = load_pack<N>(a.weight + column_of(p));
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float gradient = widen(d.v[i]), normal = (widen(v.v[i]) - shift) * scale;
        const float weighted = gradient * widen(w.v[i]);
        dot += weighted * normal;
        if (kLayer) total += weighted;
        dweight[p][i] += gradient * normal;
        if (kLayer) dbias[p][i] += gradient;
      }
    }
    group_sums<kWarpGroup, kLayer>(dot, total, sums);
    dot /= per_row;
    total /= per_row;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (column_of(p) >= a.width) continue;
      const auto d = part(a.dy, 0, p), v = part(a.r, 1, p), w = load_pack<N>(a.weight + column_of(p));
      Pack<T, N> other{}, result;
      if (adds) other = part(a.plus, 2, p);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normal = (widen(v.v[i]) - shift) * scale;
        const float gradient = scale * (widen(d.v[i]) * widen(w.v[i]) - normal * dot - total);
        result.v[i] = narrow<T>(adds ? gradient + widen(other.v[i]) : gradient);
      }
      store_pack(a.dr + row * a.width + column_of(p), result);
    }
  }
  // The groups of a block one after another; rows in flight have all been waited for, but for an empty copy.
  float* to = a.partial + static_cast<std::int64_t>(blockIdx.x) * a.width * (kLayer ? 2 : 1);
  const auto put = [&](const float(&sum)[P][N], float* out) {
    if constexpr (!kWarpGroup) {
#pragma unroll
      for (int p = 0; p < P; ++p) {
        if (column_of(p) >= a.width) continue;
#pragma unroll
        for (int i = 0; i < N; ++i) out[column_of(p) + i] = sum[p][i];
      }
      return;
    }
    auto* shared = reinterpret_cast<float*>(shared_bytes());
    for (int g = 0; g < groups; ++g) {
      __syncthreads();
      if (g != group) continue;
#pragma unroll
      for (int p = 0; p < P; ++p) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          float& held = shared[(p * N + i) * 32 + lane];
          held = g == 0 ? sum[p][i] : held + sum[p][i];
        }
      }
    }
    __syncthreads();
    for (std::int64_t c = threadIdx.x; c < a.width; c += blockDim.x) {
      const auto pack = static_cast<int>(c / N), i = static_cast<int>(c % N);
      out[c] = shared[(pack / 32 * N + i) * 32 + pack % 32];
    }
  };
  copy_wait<0>();
  put(dweight, to);
  if constexpr (kLayer) put(dbias, to + a.width);
}

template <bool kLayer, typename T, int N, int P, bool kWarpGroup>
void launch(const Rows<T>& rows, const RowCut<N>& cut, cudaStream_t stream) {
  const int lanes = kWarpGroup ? 32 : cut.threads, groups = kWarpGroup ? kWarps : 1;
  const std::size_t ring = std::size_t{2} * 3 * P * 16 * static_cast<std::size_t>(lanes * groups);
  const std::size_t sums = kWarpGroup ? std::size_t{32} * P * N * sizeof(float) : 0;
  constexpr std::size_t kStatic = 1024;  // what else the kernel has
  // Copies are of 16 bytes; shared memory of 96 KB is on every card.
  constexpr bool kMayAhead = N == kWide<T> && P <= kWarpPacks;
  if (kMayAhead && std::max(ring, sums) <= (std::size_t{96} << 10)) {
    const auto kernel = norm_grad_kernel<kLayer, kWarpGroup, kMayAhead, T, N, P>;
    const std::size_t bytes = std::max(ring, sums);
    if (bytes + kStatic > (std::size_t{48} << 10)) {
      check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                 "a norm's gradient");
    }
    kernel<<<static_cast<unsigned>(cut.blocks), cut.threads, bytes, stream>>>(rows);
  } else {
    norm_grad_kernel<kLayer, kWarpGroup, false, T, N, P>
        <<<static_cast<unsigned>(cut.blocks), cut.threads, sums, stream>>>(rows);
  }
  check_launch("a norm's gradient");
}

template <bool kLayer, typename T, int N>
void cut_rows(const Rows<T>& rows, const RowCut<N>& cut, cudaStream_t stream) {
  const auto with = [&]<int P, bool kWarpGroup>() { launch<kLayer, T, N, P, kWarpGroup>(rows, cut, stream); };
  if (!cut.warps)
    return cut.per_thread == kBlockPacks ? with.template operator()<kBlockPacks, false>()
                                         : with.template operator()<kLongPacks, false>();
  if constexpr (N > 1) {
    switch (cut.per_thread) {
      case 1:
        return with.template operator()<1, true>();
      case 2:
        return with.template operator()<2, true>();
      case 3:
        return with.template operator()<3, true>();
      case 4:
        return with.template operator()<4, true>();
      case 5:
        return with.template operator()<5, true>();
      default:
        return with.template operator()<6, true>();
    }
  }
}

}  // namespace

std::size_t norm_grad_workspace(DType dtype, bool layer_norm, std::int64_t rows, std::int64_t width) {
  return with_type(dtype, [&]<typename T>() {
    const std::int64_t blocks =
        is_wide<T>(width) ? RowCut<kWide<T>>(rows, width / kWide<T>).blocks : RowCut<1>(rows, width).blocks;
    return static_cast<std::size_t>(blocks * width * (layer_norm ? 2 : 1)) * sizeof(float);
  });
}

void norm_grad(DType dtype, const NormGrad& of, std::int64_t rows, std::int64_t width, void* workspace,
               cudaStream_t stream) {
  const bool layer = of.mean != nullptr;
  auto* partial = static_cast<float*>(workspace);
  std::int64_t blocks = 0;
  if (rows > 0) {
    with_type(dtype, [&]<typename T>() {
      const Rows<T> all{static_cast<const T*>(of.dy),
                        static_cast<const T*>(of.r),
                        static_cast<const T*>(of.weight),
                        of.mean,
                        of.rstd,
                        static_cast<const T*>(of.plus),
                        static_cast<T*>(of.dr),
                        partial,
                        rows,
                        width};
      const auto run = [&]<int N>() {
        const RowCut<N> cut(rows, width / N);
        blocks = cut.blocks;
        layer ? cut_rows<true, T, N>(all, cut, stream) : cut_rows<false, T, N>(all, cut, stream);
      };
      is_wide<T>(width) ? run.template operator()<kWide<T>>() : run.template operator()<1>();
    });
  }
  if (of.dweight == nullptr) return;
  if (layer)
    sum_partials(partial, blocks, {{of.dweight, width, of.add_weight}, {of.dbias, width, of.add_bias}}, stream);
  else
    sum_partials(partial, blocks, {{of.dweight, width, of.add_weight}}, stream);
}

}  // namespace convoy::cuda
