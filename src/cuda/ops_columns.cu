// Runs of columns of packed rows.
#include "cuda/numeric.cuh"
#include "cuda/registry.h"
#include "graph/ops/columns.h"

namespace convoy::cuda {
namespace {

constexpr int kBlock = 256;

// Widths and places in packs of N elements.
struct Columns {
  std::int64_t rows, width, first, count;
};

// y may be x: then only the part's columns are touched.
template <typename T, int N>
__global__ void add_columns_kernel(const T* x, const T* part, T* y, Columns s, bool in_place) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const std::int64_t width = in_place ? s.count : s.width;
  if (i >= s.rows * width) return;
  const std::int64_t row = i / width, column = i % width + (in_place ? s.first : 0), within = column - s.first;
  const std::int64_t at = (row * s.width + column) * N;
  auto pack = load_pack<N>(x + at);
  if (within >= 0 && within < s.count) {
    const auto more = load_pack<N>(part + (row * s.count + within) * N);
#pragma unroll
    for (int j = 0; j < N; ++j) pack.v[j] = narrow<T>(widen(pack.v[j]) + widen(more.v[j]));
  }
  store_pack(y + at, pack);
}

template <typename T, int N>
__global__ void slice_columns_kernel(const T* x, T* y, Columns s) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= s.rows * s.count) return;
  const std::int64_t row = i / s.count, column = i % s.count;
  store_pack(y + i * N, load_pack<N>(x + (row * s.width + s.first + column) * N));
}

// Calls f.operator()<T, N>(columns) with the widest pack that everything is a multiple of.
template <typename F>
void with_packs(DType dtype, const Columns& s, const F& f) {
  with_type(dtype, [&]<typename T>() {
    constexpr int N = 16 / sizeof(T);
    if (s.width % N == 0 && s.first % N == 0 && s.count % N == 0) {
      f.template operator()<T, N>(Columns{s.rows, s.width / N, s.first / N, s.count / N});
    } else {
      f.template operator()<T, 1>(s);
    }
  });
}

}  // namespace

void register_columns(KernelRegistry& registry, Context& c) {
  registry.add<AddColumns>([&c](const AddColumns& op, const KernelRequest& q) {
    const Columns columns{q.outputs[0].shape[0], q.outputs[0].shape[1], op.first, q.inputs[1]->shape[1]};
    return [&c, dtype = q.outputs[0].dtype, columns](const KernelArguments& a) {
      const bool in_place = a.inputs[0] == a.outputs[0];
      with_packs(dtype, columns, [&]<typename T, int N>(const Columns& s) {
        const std::int64_t packs = s.rows * (in_place ? s.count : s.width);
        if (packs == 0) return;
        add_columns_kernel<T, N><<<grid_of(packs, kBlock), kBlock, 0, c.stream>>>(
            reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<const T*>(a.inputs[1]),
            reinterpret_cast<T*>(a.outputs[0]), s, in_place);
      });
      check_launch("add_columns");
    };
  });
  registry.add<SliceColumns>([&c](const SliceColumns& op, const KernelRequest& q) {
    const Columns columns{q.outputs[0].shape[0], q.inputs[0]->shape[1], op.first, op.count};
    return [&c, dtype = q.outputs[0].dtype, columns](const KernelArguments& a) {
      with_packs(dtype, columns, [&]<typename T, int N>(const Columns& s) {
        if (s.rows * s.count == 0) return;
        slice_columns_kernel<T, N><<<grid_of(s.rows * s.count, kBlock), kBlock, 0, c.stream>>>(
            reinterpret_cast<const T*>(a.inputs[0]), reinterpret_cast<T*>(a.outputs[0]), s);
      });
      check_launch("slice_columns");
    };
  });
}

}  // namespace convoy::cuda
